"""Checksums of batches, and how the reports of peers differ; pure.

Peers compare what they delivered, not which samples they meant to deliver: so a dataset that differs, a random number
that only one rank drew, and a sample that only one rank skipped all show.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SHOWN = 5
"""Samples that a message names."""


@dataclass(frozen=True)
class Report:
    """What one rank has delivered, in plain values."""

    epoch: int
    step: int
    """Batches that the rank has delivered in this iteration."""
    ended: bool = False
    """True if it had no further batch."""
    fields: dict[str, int] = field(default_factory=dict)
    """A checksum for each field of the last batch."""
    lost: tuple[str, ...] = ()
    """The last samples that were skipped or replaced."""
    lost_count: int | None = None
    """How many these are; None if the rank cannot know, because it reads no samples."""


# Any, here and below: batches of any kind.
def fields_of(batch: Any) -> dict[str, int]:
    """Return a checksum for each field of a batch.

    Arrays, tensors, numbers and text count by their contents, containers by what is in them, and everything else by its
    class alone.

    Example:
        >>> fields_of({"x": np.arange(3), "y": "abc"}) == fields_of({"x": np.arange(3), "y": "abd"})
        False
    """
    if isinstance(batch, Mapping):
        return {str(name): _checksum(value, 0) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return {str(number): _checksum(value, 0) for number, value in enumerate(batch)}
    return {"": _checksum(batch, 0)}


def _checksum(value: Any, crc: int) -> int:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        crc = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode(), crc)
        if value.layout is not torch.strided:
            return crc
        plain = value.detach().cpu().contiguous().reshape(-1)
        return zlib.crc32(plain.view(torch.uint8).numpy() if plain.numel() else b"", crc)
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        crc = zlib.crc32(f"{array.dtype} {array.shape}".encode(), crc)
        if array.dtype.hasobject:
            return _checksum(array.ravel().tolist(), crc)
        return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.nbytes else b"", crc)
    if isinstance(value, Mapping):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (tuple, list)):
        crc = zlib.crc32(f"{len(value)}".encode(), crc)
        for item in value:
            crc = _checksum(item, crc)
        return crc
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return zlib.crc32(repr(value).encode("utf-8", "surrogateescape"), crc)
    return zlib.crc32(type(value).__qualname__.encode(), crc)  # its text may hold an address in memory


def difference(reports: Mapping[int, Report]) -> str | None:
    """Return in what the reports of peers differ, as a sentence; None if they are alike.

    A field is compared among the ranks that have it.

    Example:
        >>> difference({0: Report(0, 1, fields={"x": 5}), 4: Report(0, 1, fields={"x": 6})})
        "after step 1 of epoch 0, field 'x' of the batch is not the same on ranks 0 and 4"
    """
    (first, own), *others = sorted(reports.items())
    where = f"after step {own.step} of epoch {own.epoch}"
    for rank, other in others:
        if (own.epoch, own.step, own.ended) != (other.epoch, other.step, other.ended):
            return f"rank {first} {_place(own)}, and rank {rank} {_place(other)}"
    losses: tuple[int, Report] | None = None
    known: dict[str, tuple[int, int]] = {}
    for rank, other in sorted(reports.items()):
        if other.lost_count is not None:
            first, own = losses = losses or (rank, other)
            if (own.lost_count, own.lost) != (other.lost_count, other.lost):
                return f"{where}, {_losses(first, own, other)}, and {_losses(rank, other, own)}"
        for name, crc in other.fields.items():
            first, expected = known.setdefault(name, (rank, crc))
            if crc != expected:
                what = f"field {name!r} of the batch" if name else "the batch"
                return f"{where}, {what} is not the same on ranks {first} and {rank}"
    return None


def _place(report: Report) -> str:
    if report.ended:
        return f"ended epoch {report.epoch} after {report.step} batches"
    return f"is at step {report.step} of epoch {report.epoch}"


def _losses(rank: int, own: Report, other: Report) -> str:
    """Say what a rank has lost that another one has not."""
    only = [name for name in own.lost if name not in other.lost] or list(own.lost)
    named = f": {', '.join(only[:_SHOWN])}" if only else ""
    return f"rank {rank} had skipped or replaced {own.lost_count} samples{named}"
