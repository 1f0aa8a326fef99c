"""Datasets that consist of arrays or columns: make a whole batch in one vectorised step.

The result equals fetching sample by sample and collating, bit for bit. Test: tests/frameworks/test_torch_gather.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.framework import Calls, Stale
from feedline.abc.source import Columnar, ColumnSource, Selection
from feedline.errors import FeedlineError

Indices = NDArray[np.int64]

# Any, throughout: datasets and columns of any kind.

Read = Callable[[Indices], Any]
"""Returns samples as columns, in the form of a sample; None if they have to be read one by one. See `ColumnSource`."""

_LARGE_BYTES = 64 << 10
"""From this size on, the memory that a batch is written to matters more than the call that writes it."""


def reader_of(dataset: Any, inner: Callable[[Any], Read | None], *, only_arrays: bool = False) -> Read | None:
    """Return how to read the samples of a dataset together; None if they have to be read one by one.

    Args:
        dataset: the dataset.
        inner: returns the same for the dataset behind a selection.
        only_arrays: True to accept only datasets whose samples are rows of arrays.
    """
    if type(dataset) is np.ndarray and dataset.ndim > 1:
        return rows_of(dataset)
    if isinstance(dataset, Selection):
        return selected(dataset, inner)
    if isinstance(dataset, ColumnSource):
        return None if only_arrays else dataset.read_columns
    if "datasets" in sys.modules:  # of Hugging Face
        from feedline.frameworks.hugging_face import columns_of

        if (table := columns_of(dataset)) is not None:
            return None if only_arrays else table[1]
    last_call = Calls.last  # first: another thread may make a call at any time
    if not isinstance(dataset, Columnar) or (rows := rows_of(dataset.columns())) is None:
        return None
    check = dataset.row_check()

    def check_rows(indices: Indices) -> None:
        if Calls.last is not last_call:
            raise Stale
        if check is not None:
            check(indices)

    rows.check = check_rows
    return rows


def selected(dataset: Any, inner: Callable[[Any], Read | None]) -> Read | None:
    """Return how to read the samples at some indices of another dataset."""
    whole, given = dataset.dataset, dataset.indices
    read, chosen = inner(whole), np.asarray(given)
    if read is None or chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        return None
    chosen = chosen.astype(np.int64, copy=False)

    def read_selected(indices: Indices) -> Any:
        if dataset.dataset is not whole or dataset.indices is not given:
            raise Stale
        return read(chosen[indices])

    return read_selected


def rows_of(table: Any) -> Rows | None:
    """Return how to read rows of arrays: of one array, a tuple or a dict; None if they have to be read one by one."""
    names = tuple(table) if isinstance(table, dict) else ()
    columns = list(table.values()) if names else list(table) if isinstance(table, tuple) else [table]
    arrays = [column for column in map(_column, columns) if column is not None]
    if len(arrays) < len(columns) or not arrays or min(map(len, arrays)) == 0:
        return None
    return Rows(arrays, tuple if isinstance(table, tuple) else None, names)


def _column(array: object) -> NDArray[Any] | None:
    try:
        column = np.asarray(array)
    except (TypeError, RuntimeError):  # a tensor that NumPy cannot express
        return None
    # Strings are collated into lists, objects by their type, and rows of a masked array have a mask.
    is_plain = column.ndim and column.dtype.kind in "biufcmM" and column.dtype.isnative
    if not is_plain or isinstance(array, np.ma.MaskedArray) or (len(column) and keeps_format(column[0])):
        return None
    return column


def keeps_format(sample: NDArray[Any]) -> bool:
    """True if `torch.stack` may lay a batch of such samples out as they are, for example channels-last."""
    return sample.ndim > 3 and not memory.is_row_major(sample.shape, sample.strides, sample.itemsize)


class Rows:
    """Reads rows of arrays, in new memory or in the slot of the current task.

    Args:
        arrays: the columns.
        kind: `tuple` if samples are tuples.
        names: the keys if samples are dicts.
    """

    def __init__(self, arrays: list[NDArray[Any]], kind: type[tuple[Any, ...]] | None, names: tuple[str, ...]) -> None:
        self._arrays = arrays
        self._kind = kind
        self._names = names
        self._takes = [array.take for array in arrays]
        row_bytes = max(max(1, array[0].nbytes) for array in arrays)
        # `take` would copy any other array as a whole first.
        self._few = _LARGE_BYTES // row_bytes if all(map(_is_contiguous, arrays)) else 0
        """For fewer rows than this, a slot is not worth its cost."""
        self.check: Callable[[Indices], None] | None = None
        """Raises an exception if one of the rows that are about to be read is damaged, or if the dataset is another."""

    def __call__(self, indices: Indices) -> Any:
        if self.check is not None:
            self.check(indices)
        if len(indices) < self._few:
            return self._formed([take(indices, 0) for take in self._takes])
        return self._formed([_take(array, indices) for array in self._arrays])

    def quick(self, indices: Indices) -> Any:
        """See `feedline.abc.framework.Gather`."""
        if not 0 < len(indices) < self._few:
            return None
        columns = []
        try:
            if self.check is not None:
                self.check(indices)
            for take in self._takes:  # not a comprehension, which would cost another call
                columns.append(take(indices, 0))
        except (IndexError, FeedlineError, Stale):  # raised again where the task is known
            return None
        return self._formed(columns)

    def _formed(self, columns: list[NDArray[Any]]) -> Any:
        if self._kind is not None:
            return tuple(columns)
        return dict(zip(self._names, columns, strict=True)) if self._names else columns[0]


def _is_contiguous(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.flags.aligned


def _take(column: NDArray[np.generic], indices: Indices) -> NDArray[np.generic]:
    """Take rows, straight into the slot of the current task."""
    count = len(column)
    if len(indices) and not -count <= indices.min() <= indices.max() < count:
        raise IndexError(f"an index is out of range for a dataset of {count} samples")
    out = memory.empty((len(indices), *column.shape[1:]), column.dtype)
    if not _is_contiguous(column):
        out[...] = column[indices]
        return out
    # After the check above, "wrap" only affects negative indices; "raise" would make a second copy.
    return column.take(indices, 0, out=out, mode="wrap")


def joined(parts: Sequence[Any], places: list[Indices]) -> Any:
    """Combine the columns of several datasets, each row in its place; None if they differ in structure or type."""
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        return None
    if isinstance(first, tuple):
        columns = [joined(column, places) for column in zip(*parts, strict=False)]
        are_alike = len({len(part) for part in parts}) == 1 and all(column is not None for column in columns)
        return tuple(columns) if are_alike else None
    if isinstance(first, dict):
        found = joined([tuple(part.values()) for part in parts], places)
        are_alike = all(list(part) == list(first) for part in parts) and found is not None
        return dict(zip(first, found, strict=True)) if are_alike else None
    if not isinstance(first, np.ndarray) or len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
        return None
    out = memory.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    for part, rows in zip(parts, places, strict=True):
        out[rows] = part
    return out
