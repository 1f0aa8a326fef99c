"""Samplers: the order of samples, the balance of classes, and the samples of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from feedline.tools.lab.loaders import loader_of
from feedline.tools.lab.pictures import Event, Row, bars, cells, code, figures, say, table
from feedline.tools.lab.view import Control, View

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
    sampler: Annotated[str, Control("Sampler", options=tuple(_MADE))] = "random",
    batch_size: Annotated[int, Control("Batch size", 1, 48)] = 12,
    imbalance: Annotated[float, Control("Factor by which each class is rarer than the one before", 1, 4, 0.5)] = 2.0,
    ranks: Annotated[int, Control("Ranks", 1, 4)] = 1,
    forget: Annotated[bool, Control("torch's DistributedSampler without set_epoch")] = False,
) -> Iterator[Event]:
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
    yield code(text)
    labels = _labels(imbalance)
    names = {"dataset": range(_SAMPLES), "labels": labels, "lengths": _LENGTHS}
    loaders = [loader_of(text, **names, rank=rank) for rank in range(ranks)]
    epoch, following = ([[batch.tolist() for batch in loader] for loader in loaders] for _ in range(2))
    seen = Counter(index for batches in epoch for batch in batches for index in batch)
    yield figures(
        {
            "batches per rank": len(epoch[0]),
            "different samples in the epoch": len(seen),
            "seen more than once": sum(count > 1 for count in seen.values()),
            "never seen": _SAMPLES - len(seen),
        }
    )

    def row(name: str, batch: list[int]) -> Row:
        return name, [(str(index), f"class-{labels[index]}") for index in batch]

    for rank, batches in enumerate(epoch):
        whose = f", rank {rank} of {ranks}" if ranks > 1 else ""
        more = f", the first {_SHOWN} batches" if len(batches) > _SHOWN else ""
        rows = [row(f"batch {number}", batch) for number, batch in enumerate(batches[:_SHOWN])]
        yield cells(f"rank {rank}", f"Epoch 0{whose}{more}: indices of samples", rows, _LEGEND)
    first = [row(f"epoch {number}", batches[0][0]) for number, batches in enumerate((epoch, following))]
    yield cells("epochs", "The first batch of two epochs", first, _LEGEND)
    yield _balance(labels, seen)
    full = [batch for batches in epoch for batch in batches if len(batch) == batch_size]
    yield _padding(full) if sampler == "bucketed" else _spread(labels, full)
    if forget:
        yield say("set_epoch was not called, so both epochs have the same order.")
    else:
        yield say(_RESULTS.get(sampler, "Each epoch has its own order: the loader sets the epoch itself."))


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


def _balance(labels: NDArray[np.int64], seen: Counter[int]) -> Event:
    rows: list[tuple[str, float, str, str]] = []
    for name, shade in _LEGEND.items():
        members = np.flatnonzero(labels == len(rows))
        draws = sum(seen[index] for index in members.tolist())
        rows.append((name, float(draws), f"{draws} draws from {len(members)} samples", shade))
    return bars("balance", "How often each class was drawn in the epoch, on all ranks", rows)


def _spread(labels: NDArray[np.int64], batches: list[list[int]]) -> Event:
    rows = []
    for label, name in enumerate(_LEGEND):
        counts = [int((labels[batch] == label).sum()) for batch in batches] or [0]
        rows.append([name, str(min(counts)), f"{np.mean(counts):.1f}", str(max(counts))])
    return table("spread", "Samples of each class in a full batch", ["", "fewest", "on average", "most"], rows)


def _padding(batches: list[list[int]]) -> Event:
    padded = sum(len(batch) * int(_LENGTHS[batch].max()) for batch in batches)
    share = 1 - sum(int(_LENGTHS[batch].sum()) for batch in batches) / max(1, padded)
    rows = [["share of padding in a batch", f"{share:.0%}"]]
    return table("spread", "Lengths of samples that share a batch", ["", "measured"], rows)


VIEW = View(
    samplers,
    presets=[
        *({"sampler": name, "ranks": ranks} for name in _MADE for ranks in (1, 2)),
        {"ranks": 2, "forget": True},
    ],
)
