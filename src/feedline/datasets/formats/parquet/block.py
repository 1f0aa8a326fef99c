"""Keep row groups in memory, and gather their rows into the columns of a batch.

Columns of numbers are packed row by row. A batch in random order then copies one piece of memory per sample, and one
array per column, instead of one piece per sample and column.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.parquet.values import Numbers, Prepared, Texts, memory_of
from feedline.datasets.framework.source import Empty, stacked

Indices = NDArray[np.int64]

_LARGE_BYTES = 1024
"""Columns with larger rows are not packed: copying them twice would cost more than it saves. Measured with 64 rows of
40 row groups, from 64 bytes to 12 KB."""


class Block:
    """The columns of a row group."""

    def __init__(self, columns: list[Prepared], is_mapped: Callable[[int], bool]) -> None:
        numbers = {
            place: column.array
            for place, column in enumerate(columns)
            if isinstance(column, Numbers) and column.is_whole
            if 0 < column.array.nbytes < len(column.array) * _LARGE_BYTES
            if not is_mapped(column.array.__array_interface__["data"][0])
        }
        self.columns = columns
        self.kind: np.dtype[np.void] | None = None
        """The type of a packed row: a field for each packed column, named by its index among all columns."""
        self.rows: NDArray[np.uint8] | None = None
        """The packed columns, a row of bytes for each row."""
        self.bytes = memoryview(b"")
        """The packed columns as one flat buffer."""
        if len(numbers) > 1:
            kind = _kind(tuple((str(place), array.dtype, array.shape[1:]) for place, array in numbers.items()))
            packed = np.zeros(len(next(iter(numbers.values()))), kind)
            self.columns = list(columns)
            for place, array in numbers.items():
                packed[str(place)] = array
                self.columns[place] = Numbers(packed[str(place)], None)
            self.kind, self.rows = kind, packed.view(np.uint8).reshape(len(packed), kind.itemsize)
            self.bytes = self.rows.reshape(-1).data
        self.held_bytes = sum(
            size
            for address, size in {part for column in self.columns for part in memory_of(column)}
            if not is_mapped(address)
        )


@functools.lru_cache(256)
def _kind(fields: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]) -> np.dtype[np.void]:
    """Return the type of a packed row: the same object for the same fields, because comparing types is slow."""
    return np.dtype(list(fields), align=True)


def columns_of(blocks: list[Block], owners: Indices, rows: Indices, empty: Empty) -> list[object]:
    """Take rows as the columns of a batch.

    Args:
        blocks: the row groups.
        owners: for each row of the batch, the index of its row group in `blocks`.
        rows: for each row of the batch, its row in the row group.
        empty: allocates the arrays of the batch.
    """
    columns = _unpacked(_records(blocks, owners, rows), empty)
    width = len(blocks[0].columns)
    if len(blocks) == 1:
        return [columns[n] if n in columns else _taken(blocks[0].columns[n], rows, empty) for n in range(width)]
    for n in range(width):
        if n in columns:
            continue
        own = [block.columns[n] for block in blocks]
        texts = [column for column in own if isinstance(column, Texts)]
        if len(texts) == len(own):
            columns[n] = [texts[owner].one(row) for owner, row in zip(owners.tolist(), rows.tolist(), strict=True)]
        else:
            columns[n] = _joined(own, *_by_owner(owners, rows), empty)
    return [columns[n] for n in range(width)]


def _by_owner(owners: Indices, rows: Indices) -> tuple[list[Indices], list[Indices]]:
    """Return, for each row group, the rows to take from it and their positions in the batch."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners)).tolist()
    places = [order[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
    return [rows[own] for own in places], places


def _records(blocks: list[Block], owners: Indices, rows: Indices) -> NDArray[np.void] | None:
    """Return the packed rows; None if there are none, or row groups are packed differently."""
    first = blocks[0]
    if first.rows is None or first.kind is None or any(block.kind is not first.kind for block in blocks):
        return None
    if len(blocks) == 1:  # one step; taking from a structured array would make NumPy copy all of it first
        return first.rows.take(rows, 0).view(first.kind)[:, 0]
    size, pieces = first.rows.shape[1], [block.bytes for block in blocks]
    starts = (rows * size).tolist()
    copied = b"".join([pieces[n][at : at + size] for n, at in zip(owners.tolist(), starts, strict=True)])
    return np.frombuffer(copied, first.kind)


def _unpacked(records: NDArray[np.void] | None, empty: Empty) -> dict[int, object]:
    """Return the columns of packed rows, keyed by their index among all columns."""
    columns: dict[int, object] = {}
    if records is None:
        return columns
    for name in records.dtype.names or ():
        own = records[name]
        columns[int(name)] = column = empty(own.shape, own.dtype)
        column[:] = own
    return columns


def _taken(column: Prepared, rows: Indices, empty: Empty) -> object:
    """Take rows of one row group; numbers are written directly into the batch's memory."""
    if isinstance(column, Numbers) and column.is_whole and column.array.flags.c_contiguous:
        out = empty((len(rows), *column.array.shape[1:]), column.array.dtype)
        return column.array.take(rows, 0, out=out, mode="clip")  # checked before; "raise" would go through a copy
    values = column.take(rows)
    return values if isinstance(values, np.ndarray) else stacked(values, empty)


_FEW = 2
"""Large rows, or up to this many from a row group, are copied one by one: that copies them once instead of twice."""


def _joined(columns: list[Prepared], rows: list[Indices], places: list[Indices], empty: Empty) -> object:
    """Take rows of several row groups, and put them in the order of the batch."""
    count = sum(map(len, places))
    arrays = [column.array for column in columns if isinstance(column, Numbers) and column.is_whole]
    if len(arrays) == len(columns):
        out = empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        are_large = out.nbytes >= count * _LARGE_BYTES
        for array, own_rows, own in zip(arrays, rows, places, strict=True):
            if are_large or len(own) <= _FEW:
                for place, row in zip(own.tolist(), own_rows.tolist(), strict=True):
                    out[place] = array[row]
            else:
                out[own] = array[own_rows]
        return out
    # Any: arrays, or lists.
    parts: list[Any] = [column.take(own_rows) for column, own_rows in zip(columns, rows, strict=True)]
    if all(isinstance(part, np.ndarray) for part in parts):
        out = empty((count, *parts[0].shape[1:]), parts[0].dtype)
        for part, own in zip(parts, places, strict=True):
            out[own] = part
        return out
    listed: list[object] = [None] * count
    for part, own in zip(parts, places, strict=True):
        for place, value in zip(own.tolist(), part, strict=True):
            listed[place] = value
    return stacked(listed, empty)
