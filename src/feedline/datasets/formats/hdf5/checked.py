"""Rows that are verified against the checksums that `feedline pack` stored as an attribute of their dataset.

Numeric fields have one checksum per chunk, variable-length fields one per value. A process verifies a checksum when it
first reads that chunk or value.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.part import NUMBERS, Field
from feedline.datasets.formats.hdf5.rows import Indices, Rows
from feedline.datasets.framework.checksums import AGAIN, Checked, damaged
from feedline.errors import CorruptSource

if TYPE_CHECKING:
    from h5py import Dataset

SUMS = "feedline_crc32"
"""Name of the attribute."""


def checked_rows(rows: Rows, field: Field, dataset: Dataset, *, has_sums: bool) -> Rows:
    """Return rows that verify their checksums before they are read; the given rows if they have no checksums.

    Raises CorruptSource if the checksums are missing or damaged.
    """
    name = f"{field.name!r} in {dataset.file.filename}"
    if not has_sums:
        return rows
    sums, length = dataset.attrs.get(SUMS), len(dataset)
    block = int(dataset.chunks[0]) if dataset.chunks and field.kind == NUMBERS else 1
    if not isinstance(sums, np.ndarray) or sums.dtype != np.uint32 or sums.shape != (-(-length // block),):
        raise CorruptSource(f"The checksums of {name} are missing or damaged. {AGAIN}")
    if field.kind == NUMBERS:
        return _CheckedNumbers(rows, field, sums, block, length, name)
    return _CheckedValues(rows, sums, name)


class _CheckedNumbers(Rows):
    """Rows in blocks, with one checksum per block."""

    def __init__(self, rows: Rows, field: Field, sums: NDArray[np.uint32], block: int, length: int, name: str) -> None:
        self._rows = rows
        self._field = field
        self._block = block
        self._length = length
        self._name = name
        self._checked = Checked(sums, self._read, self._called)

    def fill(self, out: object, rows: Indices, places: Indices | None) -> None:
        if not self._checked.is_complete:
            self._checked.check(rows // self._block)
        self._rows.fill(out, rows, places)

    def _span(self, block: int) -> tuple[int, int]:
        return block * self._block, min(self._length, (block + 1) * self._block)

    def _read(self, block: int) -> NDArray[np.uint8]:
        rows = np.arange(*self._span(block))
        found = np.empty((len(rows), *self._field.row_shape), self._field.dtype)
        self._rows.fill(found, rows, None)
        return found.reshape(-1).view(np.uint8)

    def _called(self, block: int) -> str:
        first, stop = self._span(block)
        return f"{self._name}, in rows {first} to {stop - 1},"


class _CheckedValues(Rows):
    """Variable-length values, with one checksum each."""

    def __init__(self, rows: Rows, sums: NDArray[np.uint32], name: str) -> None:
        self._rows = rows
        self._sums = sums
        self._name = name
        self._left = np.ones(len(sums), np.bool_)

    # Any: a list.
    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        self._rows.fill(out, rows, places)
        if not self._left[rows].any():
            return
        goals = range(len(rows)) if places is None else places.tolist()
        for row, goal in zip(rows.tolist(), goals, strict=True):
            if self._left[row] and value_sum(out[goal]) != self._sums[row]:
                raise damaged(f"{self._name}, in row {row},")
            self._left[row] = False


def value_sum(value: object) -> int:
    """Return the checksum of a string, bytes or an array."""
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"))
    return zlib.crc32(value if isinstance(value, bytes) else np.ascontiguousarray(value).view(np.uint8).data)
