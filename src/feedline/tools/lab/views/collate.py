"""Collate functions: shapes before and after, and the share of padding with and without buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import numpy as np

from feedline.tools.lab import view as lab

_SAMPLES = 64
_LONGEST = 32
_SHOWN = 8
_LENGTHS = np.clip(np.random.default_rng(4).lognormal(2.2, 0.6, _SAMPLES), 2, _LONGEST).astype(np.int64)
_MADE = {
    "stack": ("collate.default", "All samples have the same shape, so their arrays are stacked."),
    "pad": ("collate.pad()", "Every sample is padded to the longest in its batch."),
    "detection": ("collate.detection()", "Images are stacked; boxes stay a list, one array per image."),
    "filter": ("collate.drop_none(collate.pad())", "Samples that are None are dropped, so the batch is shorter."),
}
"""For each choice: the collate function as code, and the result in a sentence."""


def collate(
    function: Annotated[str, lab.Control("Collate function", options=tuple(_MADE))] = "pad",
    batch_size: Annotated[int, lab.Control("Batch size", 1, 32)] = 8,
    bucketed: Annotated[bool, lab.Control("Bucket by length")] = False,
) -> Iterator[lab.Event]:
    """See how a collate function turns many samples into one batch.

    Samples of the same shape are stacked. Sequences are padded to the longest in their batch, and training computes on
    all that padding; the batch has their true lengths (ids_lengths), from which a model makes its mask. Boxes stay
    lists, and samples that could not be made are dropped.

    Bucketing puts sequences of similar lengths together, which removes most of the padding. The buckets and the order
    of the batches are still shuffled in every epoch.
    """
    has_lengths = function in ("pad", "filter")
    text = _code(function, batch_size, bucketed=bucketed and has_lengths)
    yield lab.code(text)
    dataset = _dataset(function)
    batch = next(iter(lab.loader_of(text, dataset=dataset, lengths=_LENGTHS)))
    indices = next(iter(lab.loader_of(text, dataset=range(_SAMPLES), lengths=_LENGTHS).batch_sampler))
    members = [[str(index), _shape(dataset[index])] for index in indices]
    more = [["…", f"{len(members) - _SHOWN} more"]] if len(members) > _SHOWN else []
    yield lab.table("before", f"Before: {len(members)} samples", ["index", "sample"], members[:_SHOWN] + more)
    fields = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    shapes = [[str(name), _shape(value)] for name, value in fields]
    yield lab.table("after", "After: one batch", ["field", "type and shape"], shapes)
    yield lab.say(_MADE[function][1])
    if not has_lengths:
        yield lab.figures({"samples in the batch": len(members)})
        return
    lengths = batch["ids_lengths"].tolist()
    padding = f"{1 - sum(lengths) / batch['ids'].numel():.0%}"
    figures = {"samples in the batch": len(lengths), "longest": batch["ids"].shape[1]}
    yield lab.figures({**figures, "padding in this batch": padding})
    rows = [
        (f"row {row}", [(str(value), "accent" if at < length else "pad") for at, value in enumerate(ids)])
        for row, (ids, length) in enumerate(zip(batch["ids"].tolist()[:16], lengths, strict=False))
    ]
    legend = {"tokens of the sample": "accent", "padding": "pad"}
    yield lab.cells("padded", "The batch, one row per sample", rows, legend)
    waste = {name: _waste(batch_size, bucketed=name == "bucketed") for name in ("random", "bucketed")}
    shown = "bucketed" if bucketed else "random"
    drawn = [(name, share, f"{share:.0%}", "accent" if name == shown else "pad") for name, share in waste.items()]
    yield lab.bars("waste", "Share of padding in all batches of the epoch", drawn)


def _dataset(function: str) -> list[object]:
    dice = np.random.default_rng(3)
    if function == "stack":
        return [{"image": np.zeros((3, 8, 8), np.float32), "label": int(dice.integers(10))} for _ in range(_SAMPLES)]
    if function == "detection":
        counts = dice.integers(0, 5, _SAMPLES).tolist()
        return [(np.zeros((3, 16, 16), np.uint8), {"boxes": dice.random((count, 4))}) for count in counts]
    texts = [{"ids": dice.integers(1, 9, length), "label": length % 2} for length in _LENGTHS.tolist()]
    return [None if function == "filter" and number % 5 == 2 else text for number, text in enumerate(texts)]


def _code(function: str, size: int, *, bucketed: bool) -> str:
    lines, order = ["from feedline import DataLoader, collate", ""], f"batch_size={size}, shuffle=True"
    if bucketed:
        lines = ["from feedline import DataLoader, collate, samplers", ""]
        lines.append(f"batches = samplers.LengthBucketBatchSampler(lengths, batch_size={size})")
        order = "batch_sampler=batches"
    return "\n".join([*lines, f"loader = DataLoader(dataset, {order}, collate_fn={_MADE[function][0]}, seed=0)"])


def _waste(size: int, *, bucketed: bool) -> float:
    """Run an epoch, and return the share of padding in its batches."""
    loader = lab.loader_of(_code("pad", size, bucketed=bucketed), dataset=_dataset("pad"), lengths=_LENGTHS)
    return 1 - int(_LENGTHS.sum()) / sum(int(batch["ids"].numel()) for batch in loader)


def _shape(value: object) -> str:
    """Describe a value by its type and shape."""
    if hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_shape(member)}" for name, member in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_shape(member) for member in value[:3])
        return f"{type(value).__name__} of {len(value)}: {shown}{', …' if len(value) > 3 else ''}"
    return "None" if value is None else f"{type(value).__name__} {value}"


_BUCKETED = [{"batch_size": size, "bucketed": bucketed} for size in (4, 8, 16) for bucketed in (False, True)]
VIEW = lab.View(collate, presets=[*({"function": name} for name in _MADE if name != "pad"), *_BUCKETED])
