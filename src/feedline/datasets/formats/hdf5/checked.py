"""Rows whose checksums are compared when they are first read, as `feedline pack` stored them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.fields import NUMBERS, Field
from feedline.datasets.formats.hdf5.rows import Indices, Rows
from feedline.datasets.framework.checksums import AGAIN, Checked, damaged
from feedline.errors import CorruptSource

if TYPE_CHECKING:
    from h5py import Dataset

SUMS = "feedline_crc32"
"""Attribute of a dataset with the checksums that `feedline pack` wrote: one for each chunk of numbers, or each value of
variable length."""


def checked_rows(rows: Rows, field: Field, dataset: Dataset) -> Rows:
    """Return rows that verify the checksums that `feedline pack` stored, when they are first read.

    Raises CorruptSource if the checksums are missing or damaged.
    """
    name = f"{field.name!r} in {dataset.file.filename}"
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
        self._block = block

        def read(number: int) -> NDArray[np.uint8]:
            inside = np.arange(number * block, min(length, (number + 1) * block))
            found = np.empty((len(inside), *field.row_shape), field.dtype)
            rows.fill(found, inside, None)
            return found.reshape(-1).view(np.uint8)

        self._checked = Checked(
            sums, read, lambda number: f"{name}, in rows {number * block} to {min(length, (number + 1) * block) - 1},"
        )

    def fill(self, out: object, rows: Indices, places: Indices | None) -> None:
        if not self._checked.is_complete:
            self._checked.check(rows // self._block)
        self._rows.fill(out, rows, places)


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
