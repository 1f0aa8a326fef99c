"""Samplers: the order of samples, the balance of classes, and the samples of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline import samplers
from feedline.abc.sampler import BatchSampler, Sampler
from feedline.loader.loader import Loader
from feedline.system.optional import require
from feedline.tools.lab.controls import Choice, Number, Switch, Values
from feedline.tools.lab.pictures import Event, bars, cells, figures, say, table
from feedline.tools.lab.view import Actions, View

_SAMPLES = 96
_CLASSES = 4
_SHOWN = 12
_EVERY = 4
"""One in how many samples is in the subset."""
_SEED = 7
_LEGEND = [(f"class {label}", f"class-{label}") for label in range(_CLASSES)]
_Batches = list[list[int]]


def _labels(imbalance: float) -> NDArray[np.int64]:
    """Return labels. Class 0 is the most frequent; each class is rarer than the one before by a factor `imbalance`."""
    shares = np.power(1 / imbalance, np.arange(_CLASSES))
    counts = np.maximum(1, np.floor(shares / shares.sum() * _SAMPLES)).astype(int)
    counts[0] += _SAMPLES - counts.sum()
    return np.random.default_rng(0).permutation(np.repeat(np.arange(_CLASSES), counts))


def _lengths() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(5, 120, _SAMPLES)


def _run(values: Values, _: Actions) -> Iterator[Event]:
    labels, size, ranks = _labels(values["imbalance"]), values["batch_size"], values["ranks"]
    forgets = values["forget"]
    epochs = [[_batches(values, labels, rank, epoch) for rank in range(ranks)] for epoch in (0, 1)]
    first = epochs[0]
    seen = Counter(index for batches in first for batch in batches for index in batch)
    yield figures(
        {
            "batches per rank": len(first[0]),
            "different samples in the epoch": len(seen),
            "seen more than once": sum(count > 1 for count in seen.values()),
            "never seen": _SAMPLES - len(seen),
        }
    )
    for rank, batches in enumerate(first):
        drawn = [
            (f"batch {number}", [(str(index), f"class-{labels[index]}") for index in batch])
            for number, batch in enumerate(batches[:_SHOWN])
        ]
        whose = f", rank {rank} of {ranks}" if ranks > 1 else ""
        more = f", the first {_SHOWN} batches" if len(batches) > _SHOWN else ""
        yield cells(f"rank {rank}", f"Epoch 0{whose}{more}: indices of samples", drawn, _LEGEND)
    yield _balance(labels, seen)
    yield table("spread", *_spread(values["sampler"], labels, first, size))
    yield cells(
        "epochs",
        "The first batch of two epochs",
        [(f"epoch {epoch}", [(str(i), f"class-{labels[i]}") for i in epochs[epoch][0][0]]) for epoch in (0, 1)],
        _LEGEND,
    )
    yield say(_explanation(values["sampler"], forgets=forgets))


def _balance(labels: NDArray[np.int64], seen: Counter[int]) -> Event:
    rows = []
    for label in range(_CLASSES):
        draws = sum(count for index, count in seen.items() if labels[index] == label)
        there = int((labels == label).sum())
        rows.append((f"class {label}", float(draws), f"{draws} draws from {there} samples", f"class-{label}"))
    return bars("balance", "How often each class was drawn in the epoch, on all ranks", rows)


def _spread(
    sampler: str, labels: NDArray[np.int64], ranks: Sequence[_Batches], size: int
) -> tuple[str, list[str], list[list[str]]]:
    """Measure how even the batches are: by classes, or by lengths for the sampler that is about lengths."""
    batches = [batch for batches in ranks for batch in batches if len(batch) == size]
    if sampler == "bucketed":
        lengths = _lengths()
        padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
        wasted = 1 - sum(int(lengths[batch].sum()) for batch in batches) / max(1, padded)
        rows = [["share of padding in a batch", f"{wasted:.0%}"]]
        return "Lengths of samples that share a batch", ["", "measured"], rows
    rows = []
    for label in range(_CLASSES):
        counts = [int((labels[batch] == label).sum()) for batch in batches] or [0]
        rows.append([f"class {label}", str(min(counts)), f"{np.mean(counts):.1f}", str(max(counts))])
    return "Samples of each class in a full batch", ["", "fewest", "on average", "most"], rows


def _explanation(sampler: str, *, forgets: bool) -> str:
    if sampler == "sequential" and not forgets:
        return "A sequential order is the same in every epoch."
    if forgets:
        return "set_epoch was not called, so both epochs have the same order."
    if sampler == "subset random":
        return f"Only every {_EVERY}th sample is drawn, in another order in each epoch."
    if sampler == "batch sampler":
        return "The batch sampler groups a random order, and drops an incomplete batch."
    return "Each epoch has its own order: the loader sets the epoch itself."


def _batches(values: Values, labels: NDArray[np.int64], rank: int, epoch: int) -> _Batches:
    """Return the batches that the real loader delivers to a rank in an epoch."""
    ranks, size = values["ranks"], values["batch_size"]
    if values["forget"]:
        return _torchs(size, rank, ranks)
    made = _MAKERS[values["sampler"]](labels, size)
    if ranks > 1:
        made = samplers.distribute(made, rank, ranks)
    if isinstance(made, (BatchSampler, samplers.BatchSampler)):
        loader = Loader(np.arange(_SAMPLES), batch_sampler=made, seed=_SEED)
    else:
        loader = Loader(np.arange(_SAMPLES), size, sampler=made, seed=_SEED)
    loader.set_epoch(epoch)
    return [batch.tolist() for batch in loader]


def _torchs(size: int, rank: int, ranks: int) -> _Batches:
    """Return batches of torch's own sampler, in a script that never calls set_epoch."""
    torch_data = require("torch.utils.data", extra="torch", purpose="torch's DistributedSampler")
    sampler = torch_data.DistributedSampler(range(_SAMPLES), num_replicas=ranks, rank=rank, shuffle=True, seed=_SEED)
    return [list(batch) for batch in torch_data.BatchSampler(sampler, size, drop_last=False)]


_MAKERS: dict[str, Callable[[NDArray[np.int64], int], Sampler | BatchSampler | samplers.BatchSampler]] = {
    "sequential": lambda labels, size: samplers.SequentialSampler(range(_SAMPLES)),
    "random": lambda labels, size: samplers.RandomSampler(range(_SAMPLES)),
    "subset random": lambda labels, size: samplers.SubsetRandomSampler(range(0, _SAMPLES, _EVERY)),
    "batch sampler": lambda labels, size: samplers.BatchSampler(
        samplers.RandomSampler(range(_SAMPLES)), size, drop_last=True
    ),
    "weighted": lambda labels, size: samplers.WeightedRandomSampler(1 / np.bincount(labels)[labels], _SAMPLES),
    "stratified": lambda labels, size: samplers.StratifiedBatchSampler(labels, size),
    "bucketed": lambda labels, size: samplers.LengthBucketBatchSampler(_lengths(), size),
}
_WRITTEN = {
    "sequential": "sampler = samplers.SequentialSampler(dataset)",
    "random": "sampler = samplers.RandomSampler(dataset)",
    "subset random": f"sampler = samplers.SubsetRandomSampler(range(0, len(dataset), {_EVERY}))",
    "batch sampler": "batches = samplers.BatchSampler(samplers.RandomSampler(dataset), {batch_size}, drop_last=True)",
    "weighted": "sampler = samplers.WeightedRandomSampler(1 / np.bincount(labels)[labels], len(dataset))",
    "stratified": "batches = samplers.StratifiedBatchSampler(labels, batch_size={batch_size})",
    "bucketed": "batches = samplers.LengthBucketBatchSampler(lengths, batch_size={batch_size})",
}


def _code(values: Values) -> str:
    if values["forget"]:
        return f"""from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(dataset, num_replicas={values["ranks"]}, rank=rank, seed={_SEED})
loader = DataLoader(dataset, batch_size={values["batch_size"]}, sampler=sampler)
for epoch in range(epochs):
    for batch in loader:  # sampler.set_epoch(epoch) is missing: every epoch has the same order
        ...
"""
    made = _WRITTEN[values["sampler"]].format(batch_size=values["batch_size"])
    name = made.partition(" ")[0]
    numpy = ["import numpy as np"] if "np." in made else []
    lines = [*numpy, "from feedline import DataLoader, samplers", "", made]
    if values["ranks"] > 1:
        lines.append(f"{name} = samplers.distribute({name})  # rank and {values['ranks']} ranks: from torchrun")
    option = "batch_sampler=batches" if name == "batches" else f"batch_size={values['batch_size']}, sampler=sampler"
    return "\n".join([*lines, f"loader = DataLoader(dataset, {option}, seed={_SEED})", ""])


VIEW = View(
    name="samplers",
    title="Samplers",
    notice="See the order of samples that each sampler gives. Colours are classes.",
    more="A random order leaves rare classes out of many batches. A weighted sampler draws them more often, and some "
    "other samples not at all. A subset sampler draws from the indices that you give it, such as a validation split. A "
    "batch sampler groups the indices of another sampler. A stratified sampler gives every batch the mixture of the "
    "whole dataset. With several ranks, each one gets its own part of one common order. If you forget set_epoch with "
    "torch's DistributedSampler, every epoch has the same order; feedline's loader sets the epoch itself.",
    controls=(
        Choice("sampler", "Sampler", tuple(_MAKERS), "random"),
        Number("batch_size", "Batch size", 1, 48, 12),
        Number("imbalance", "Factor by which each class is rarer than the one before", 1, 4, 2, step=0.5),
        Number("ranks", "Ranks", 1, 4, 1),
        Switch("forget", "torch's DistributedSampler without set_epoch", default=False),
    ),
    code=_code,
    run=_run,
    questions=(
        (
            "When do you pass sampler=, and when batch_sampler=?",
            "A sampler yields single indices, and batch_size says how many make a batch. A batch sampler yields whole "
            "batches of indices, so batch_size, shuffle, sampler and drop_last must be left out.",
        ),
        (
            "What does a weighted sampler cost?",
            "It draws with replacement: some samples come several times in an epoch, others not at all. The figures "
            "above count both.",
        ),
    ),
    presets=(
        *({"sampler": name, "ranks": ranks} for name in _MAKERS for ranks in (1, 2)),
        {"ranks": 2, "forget": True},
    ),
)
