"""Samplers: the order of samples, the balance of classes, and the samples of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from feedline.tools.lab import view as lab

_SAMPLES = 96
_CLASSES = 4
_SHOWN = 12
_LEGEND = {f"class {label}": f"class-{label}" for label in range(_CLASSES)}
_LENGTHS = np.random.default_rng(1).integers(5, 120, _SAMPLES)
_MADE = {
    "sequential": "sampler = samplers.SequentialSampler(dataset)",
    "random": "sampler = samplers.RandomSampler(dataset)",
    "subset random": "sampler = samplers.SubsetRandomSampler(range(0, len(dataset), 4))",
    "batch sampler": "batches = samplers.BatchSampler(samplers.RandomSampler(dataset), {size}, drop_last=True)",
    "weighted": "sampler = samplers.WeightedRandomSampler(1 / np.bincount(labels)[labels], len(dataset))",
    "stratified": "batches = samplers.StratifiedBatchSampler(labels, batch_size={size})",
    "bucketed": "batches = samplers.LengthBucketBatchSampler(lengths, batch_size={size})",
}
_RESULTS = {
    "sequential": "A sequential order is the same in every epoch.",
    "subset random": "Only every 4th sample is drawn, in another order in each epoch.",
    "batch sampler": "The batch sampler groups a random order, and drops an incomplete batch.",
}


def samplers(
    sampler: Annotated[str, lab.Control("Sampler", options=tuple(_MADE))] = "random",
    batch_size: Annotated[int, lab.Control("Batch size", 1, 48)] = 12,
    imbalance: Annotated[
        float, lab.Control("Factor by which each class is rarer than the one before", 1, 4, 0.5)
    ] = 2.0,
    ranks: Annotated[int, lab.Control("Ranks", 1, 4)] = 1,
    forget: Annotated[bool, lab.Control("torch's DistributedSampler without set_epoch")] = False,
) -> Iterator[lab.Event]:
    """See the order of samples that each sampler gives. Colours are classes.

    A random order leaves rare classes out of many batches. A weighted sampler draws them more often, with replacement:
    some samples come several times in an epoch, others not at all. A stratified sampler gives every batch the mixture
    of the whole dataset.

    A sampler yields indices, and batch_size says how many make a batch. A batch sampler yields whole batches, so
    batch_size, shuffle, sampler and drop_last must be left out.

    With several ranks, each one gets its own part of one common order. If you forget set_epoch with torch's
    DistributedSampler, every epoch has the same order; feedline's loader sets the epoch itself.
    """
    text = _torchs(batch_size, ranks) if forget else _code(sampler, batch_size, ranks)
    yield lab.code(text)
    labels = _labels(imbalance)
    names = {"dataset": range(_SAMPLES), "labels": labels, "lengths": _LENGTHS}
    loaders = [lab.loader_of(text, **names, rank=rank) for rank in range(ranks)]
    epoch, following = ([[batch.tolist() for batch in loader] for loader in loaders] for _ in range(2))
    every = [batch for batches in epoch for batch in batches]
    seen = Counter(index for batch in every for index in batch)
    repeated = sum(count > 1 for count in seen.values())
    counts = {"different samples in the epoch": len(seen), "seen more than once": repeated}
    yield lab.figures({"batches per rank": len(epoch[0]), **counts, "never seen": _SAMPLES - len(seen)})

    def row(name: str, batch: list[int]) -> lab.Row:
        return name, [(str(index), f"class-{labels[index]}") for index in batch]

    for rank, batches in enumerate(epoch):
        whose = f", rank {rank} of {ranks}" if ranks > 1 else ""
        more = f", the first {_SHOWN} batches" if len(batches) > _SHOWN else ""
        rows = [row(f"batch {number}", batch) for number, batch in enumerate(batches[:_SHOWN])]
        yield lab.cells(f"rank {rank}", f"Epoch 0{whose}{more}: indices of samples", rows, _LEGEND)
    first = [row(f"epoch {number}", batches[0][0]) for number, batches in enumerate((epoch, following))]
    yield lab.cells("epochs", "The first batch of two epochs", first, _LEGEND)
    yield lab.table(
        "classes",
        "Classes in the epoch, on all ranks, and in a full batch",
        ["", "samples", "draws", "fewest in a batch", "on average", "most"],
        list(_classes(labels, seen, [batch for batch in every if len(batch) == batch_size])),
    )
    usual = "Each epoch has its own order: the loader sets the epoch itself."
    forgotten = "set_epoch was not called, so both epochs have the same order."
    yield lab.say(forgotten if forget else _RESULTS.get(sampler, usual))


def _labels(imbalance: float) -> NDArray[np.int64]:
    """Return labels. Class 0 is the most frequent; each class is rarer than the one before by a factor `imbalance`."""
    shares = np.power(1 / imbalance, np.arange(_CLASSES))
    counts = np.maximum(1, np.floor(shares / shares.sum() * _SAMPLES)).astype(int)
    counts[0] += _SAMPLES - counts.sum()
    return np.random.default_rng(0).permutation(np.repeat(np.arange(_CLASSES), counts))


def _code(sampler: str, size: int, ranks: int) -> str:
    made = _MADE[sampler].format(size=size)
    name = made.partition(" ")[0]
    lines = ["import numpy as np"] if "np." in made else []
    lines += ["from feedline import DataLoader, samplers", "", made]
    if ranks > 1:
        lines.append(f"{name} = samplers.distribute({name}, rank, {ranks})")
    option = "batch_sampler=batches" if name == "batches" else f"batch_size={size}, sampler=sampler"
    return "\n".join([*lines, f"loader = DataLoader(dataset, {option}, seed=7)"])


def _torchs(size: int, ranks: int) -> str:
    return f"""from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(dataset, num_replicas={ranks}, rank=rank, seed=7)
loader = DataLoader(dataset, batch_size={size}, sampler=sampler)
# sampler.set_epoch(epoch) is never called: every epoch has the same order"""


def _classes(labels: NDArray[np.int64], seen: Counter[int], batches: list[list[int]]) -> Iterator[list[str]]:
    for label, name in enumerate(_LEGEND):
        members = np.flatnonzero(labels == label).tolist()
        counts = [int((labels[batch] == label).sum()) for batch in batches] or [0]
        in_batch = [min(counts), f"{np.mean(counts):.1f}", max(counts)]
        yield [name, *map(str, [len(members), sum(seen[index] for index in members), *in_batch])]


_PRESETS = [{"sampler": name, "ranks": ranks} for name in _MADE for ranks in (1, 2)]
VIEW = lab.View(samplers, presets=[*_PRESETS, {"ranks": 2, "forget": True}])
