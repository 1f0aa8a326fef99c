"""From samples to a batch: shapes before and after, by collate function; how much of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from feedline import collate, samplers
from feedline.abc.sampler import BatchSampler
from feedline.loader.loader import Loader
from feedline.tools.lab.controls import Choice, Number, Switch, Values
from feedline.tools.lab.pictures import Event, bars, cells, figures, say, table
from feedline.tools.lab.view import Actions, View
from feedline.types import CollateFunction

_SAMPLES = 64
_SHOWN = 32
"""Columns of a padded batch to draw."""


def _dataset(kind: str) -> list[object]:
    dice = np.random.default_rng(3)
    if kind == "stack":
        return [{"image": np.zeros((3, 8, 8), np.float32), "label": int(dice.integers(10))} for _ in range(_SAMPLES)]
    if kind == "detection":
        return [
            (np.zeros((3, 16, 16), np.uint8), {"boxes": dice.random((int(n), 4))})
            for n in dice.integers(0, 5, _SAMPLES)
        ]
    texts = [{"ids": dice.integers(1, 9, int(n)), "label": int(n) % 2} for n in _lengths()]
    if kind == "filter":
        return [None if number % 5 == 2 else text for number, text in enumerate(texts)]
    return list(texts)


def _lengths() -> NDArray[np.int64]:
    return np.clip(np.random.default_rng(4).lognormal(2.2, 0.6, _SAMPLES), 2, _SHOWN).astype(np.int64)


_FUNCTIONS: dict[str, CollateFunction] = {
    "stack": collate.default,
    "pad": collate.pad(),
    "detection": collate.detection(),
    "filter": collate.drop_none(collate.pad()),
}
_WRITTEN = {
    "stack": "collate.default",
    "pad": "collate.pad()",
    "detection": "collate.detection()",
    "filter": "collate.drop_none(collate.pad())",
}


def _run(values: Values, _: Actions) -> Iterator[Event]:
    kind, size = values["kind"], values["batch_size"]
    dataset = _dataset(kind)
    by_length = kind in ("pad", "filter")
    if values["bucketed"] and by_length:
        order: BatchSampler | samplers.BatchSampler = samplers.LengthBucketBatchSampler(_lengths(), size, seed=0)
    else:
        order = samplers.BatchSampler(samplers.RandomSampler(range(_SAMPLES), seed=0), size, drop_last=False)
    loader = Loader(dataset, batch_sampler=order, collate_fn=_FUNCTIONS[kind], seed=0)
    first = list(next(iter(order)))
    batch = next(iter(loader))
    members = [dataset[index] for index in first]
    yield table(
        "before",
        f"Before: {len(members)} samples",
        ["index", "sample"],
        [[str(index), _shape(member)] for index, member in zip(first[:8], members, strict=False)]
        + ([["…", f"{len(members) - 8} more"]] if len(members) > 8 else []),
    )
    yield table("after", "After: one batch", ["field", "type and shape"], _fields(batch))
    if not by_length:
        yield figures({"samples in the batch": len(members), "bytes in arrays": _bytes(batch)})
        yield say(_EXPLANATIONS[kind])
        return
    lengths = batch["ids_lengths"].tolist()
    width = batch["ids"].shape[1]
    yield cells("padded", "The batch, one row per sample", _rows(batch["ids"].tolist(), lengths), list(_LEGEND.items()))
    waste = {named: _waste(bucketed=named == "bucketed", size=size) for named in ("random", "bucketed")}
    yield figures(
        {
            "samples in the batch": len(lengths),
            "longest": width,
            "padding in this batch": f"{1 - sum(lengths) / (len(lengths) * width):.0%}",
        }
    )
    yield bars(
        "waste",
        "Share of padding in all batches of the epoch",
        [
            (named, share, f"{share:.0%}", "accent" if (named == "bucketed") == values["bucketed"] else "pad")
            for named, share in waste.items()
        ],
    )
    yield say(_EXPLANATIONS[kind])


_LEGEND = {"tokens of the sample": "accent", "padding": "pad"}
_EXPLANATIONS = {
    "stack": "All samples have the same shape, so their arrays are stacked.",
    "pad": "Every sample is padded to the longest in its batch.",
    "detection": "Images are stacked; boxes stay a list, one array per image.",
    "filter": "Samples that are None are dropped, so the batch is shorter.",
}


def _rows(batch: list[list[int]], lengths: list[int]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (f"row {row}", [(str(value), "accent" if at < length else "pad") for at, value in enumerate(ids[:_SHOWN])])
        for row, (ids, length) in enumerate(zip(batch[:16], lengths, strict=False))
    ]


def _waste(*, bucketed: bool, size: int) -> float:
    """Run an epoch, and return the share of padding in its batches."""
    lengths = _lengths()
    texts = [{"ids": np.ones(int(n), np.int64)} for n in lengths]
    order: BatchSampler | samplers.BatchSampler = samplers.LengthBucketBatchSampler(lengths, size, seed=0)
    if not bucketed:
        order = samplers.BatchSampler(samplers.RandomSampler(range(_SAMPLES), seed=0), size, drop_last=False)
    total = used = 0
    for batch in Loader(texts, batch_sampler=order, collate_fn=collate.pad(), seed=0):
        total += batch["ids"].size
        used += int(batch["ids_lengths"].sum())
    return 1 - used / total


def _fields(batch: object) -> list[list[str]]:
    if isinstance(batch, Mapping):
        return [[str(name), _shape(value)] for name, value in batch.items()]
    if isinstance(batch, (list, tuple)):
        return [[str(place), _shape(value)] for place, value in enumerate(batch)]
    return [["", _shape(batch)]]


def _shape(value: object) -> str:
    """Describe a value by its type and shape."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_shape(member)}" for name, member in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_shape(member) for member in value[:3])
        return f"{type(value).__name__} of {len(value)}: {shown}{', …' if len(value) > 3 else ''}"
    return "None" if value is None else f"{type(value).__name__} {value}"


def _bytes(value: object) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(_bytes(member) for member in value.values())
    return sum(_bytes(member) for member in value) if isinstance(value, (list, tuple)) else 0


def _code(values: Values) -> str:
    size = values["batch_size"]
    if values["bucketed"] and values["kind"] in ("pad", "filter"):
        lines = ["from feedline import DataLoader, collate, samplers", ""]
        lines.append(f"batches = samplers.LengthBucketBatchSampler(lengths, batch_size={size})")
        order = "batch_sampler=batches"
    else:
        lines = ["from feedline import DataLoader, collate", ""]
        order = f"batch_size={size}, shuffle=True"
    return "\n".join([*lines, f"loader = DataLoader(dataset, {order}, collate_fn={_WRITTEN[values['kind']]})", ""])


VIEW = View(
    name="collate",
    title="Collate",
    notice="See how a collate function turns many samples into one batch.",
    more="Samples of the same shape are stacked. Sequences are padded to the longest in their batch, and training "
    "computes on all that padding. Bucketing puts sequences of similar lengths together, which removes most of it. "
    "Boxes stay lists, and samples that could not be made are dropped.",
    controls=(
        Choice("kind", "Collate function", ("stack", "pad", "detection", "filter"), "pad"),
        Number("batch_size", "Batch size", 1, 32, 8),
        Switch("bucketed", "Bucket by length", default=False),
    ),
    code=_code,
    run=_run,
    questions=(
        (
            "How does the model know what is padding?",
            "The batch contains the true length of every sequence (ids_lengths). A mask is made from it, such as "
            "torch.arange(width) < lengths[:, None].",
        ),
        (
            "Does bucketing make training less random?",
            "A little: sequences of similar length meet more often. The buckets and the order of the batches are still "
            "shuffled in every epoch.",
        ),
    ),
    presets=(
        *({"kind": kind} for kind in ("stack", "detection", "filter")),
        *(
            {"kind": "pad", "batch_size": size, "bucketed": bucketed}
            for size in (4, 8, 16)
            for bucketed in (False, True)
        ),
    ),
)
