"""Hugging Face `datasets`: read a batch as columns from the underlying Arrow tables.

The package is not imported here: without it no such dataset can exist. Only exact types are recognised, and only if
their samples are numbers, strings, or (in the formats "numpy" and "torch") lists of numbers. The result equals fetching
and collating single samples, bit for bit; data for which that is not certain takes the slow path.
Test: tests/frameworks/test_hugging_face.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory

Indices = NDArray[np.int64]

# Any, throughout: neither package has types to check against.

ReadColumns = Callable[[Indices], "dict[str, object] | None"]
"""Returns the columns of some samples: arrays with a row per sample, or lists of strings.

None if these samples have to be read one by one.
"""


@dataclass(frozen=True)
class _Chunk:
    """Some rows of a column, as stored in memory."""

    values: Any
    """An array with a row per sample; for strings, a pyarrow array; for lists, the numbers of all lists."""
    offsets: NDArray[np.int32] | NDArray[np.int64] | None = None
    """Where each list starts and ends among the numbers."""


_Part = tuple[int, Indices, Indices]
"""A chunk's number, the positions in the batch that it fills, and its rows for these positions."""


def _parts(rows: Indices, starts: NDArray[np.int64]) -> list[_Part]:
    """Group rows by the chunk they are in; `starts` has the first row of each chunk."""
    owners = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(owners, kind="stable")
    present, firsts = np.unique(owners[order], return_index=True)
    places = np.split(order, firsts[1:])
    return [(owner, own, rows[own] - starts[owner]) for owner, own in zip(present.tolist(), places, strict=True)]


def columns_of(dataset: Any) -> tuple[str | None, ReadColumns] | None:
    """Return a dataset's format and a function that reads its columns; None if samples have to be read one by one."""
    package = sys.modules.get("datasets")
    if package is None or type(dataset) is not getattr(package, "Dataset", None):
        return None
    form = dataset.format
    if form["type"] not in (None, "numpy", "torch") or form["format_kwargs"] or form["output_all_columns"]:
        return None
    table = dataset.data.table
    chosen = set(dataset.column_names if form["columns"] is None else form["columns"])
    columns: dict[str, _Column] = {}
    for name in table.column_names:
        if name in chosen:
            column = _Column.of(package, dataset.features[name], table.column(name), form["type"])
            if column is None:
                return None
            columns[name] = column
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy().astype(np.int64, copy=False)
    count = len(dataset)

    def read(indices: Indices) -> dict[str, object] | None:
        if len(indices) == 0 or indices.min() < -count or indices.max() >= count:
            return None  # the dataset itself raises the right error
        own = indices % count if rows is None else rows[indices]
        parts: dict[bytes, list[_Part]] = {}  # most columns have the same chunks
        found = {}
        for name, column in columns.items():
            cut = column.starts.tobytes()
            if cut not in parts:
                parts[cut] = _parts(own, column.starts)
            values = column.take(parts[cut], len(own))
            if values is None:
                return None
            found[name] = values
        return found

    return (form["type"], read) if columns else None


@dataclass(frozen=True, eq=False)
class _Column:
    """One column of a dataset."""

    _chunks: list[_Chunk]
    starts: NDArray[np.int64]
    """The first row of each chunk, then the number of all rows."""
    _dtype: np.dtype[np.generic] | None
    """Type of the numbers in a batch; None for strings."""
    _form: str | None
    """The format of the dataset."""

    @classmethod
    def of(cls, package: ModuleType, feature: object, column: Any, form: str | None) -> _Column | None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        starts = np.zeros(len(chunks) + 1, np.int64)
        np.cumsum([len(chunk) for chunk in chunks], out=starts[1:])
        kind = _kind(package, feature, column.type)
        if kind is None or not chunks or any(chunk.null_count for chunk in chunks):
            return None
        if kind == "text":
            return cls([_Chunk(chunk) for chunk in chunks], starts, None, form)
        if kind == "number":
            prepared = [_Chunk(chunk.to_numpy(zero_copy_only=False)) for chunk in chunks]
        elif form is None or any(chunk.values.null_count for chunk in chunks):
            return None  # without a format, torch collates lists position by position
        else:
            prepared = [_Chunk(one.values.to_numpy(zero_copy_only=False), one.offsets.to_numpy()) for one in chunks]
        dtypes = {chunk.values.dtype for chunk in prepared}
        dtype = _batch_dtype(dtypes.pop(), form) if len(dtypes) == 1 else None
        return None if dtype is None else cls(prepared, starts, dtype, form)

    def take(self, where: list[_Part], count: int) -> object:
        """Return the column of a batch; None if its rows do not fit together."""
        parts = [(self._chunks[owner], own, inside) for owner, own, inside in where]
        if self._dtype is None:
            return self._texts(parts, count)
        if self._chunks[0].offsets is not None:
            return self._lists(parts, count)
        out = memory.empty((count,), self._dtype)
        for chunk, own, inside in parts:
            out[own] = chunk.values[inside]
        return out

    def _texts(self, parts: list[tuple[_Chunk, Indices, Indices]], count: int) -> object:
        texts: list[object] = [None] * count
        for chunk, own, inside in parts:
            for place, row in zip(own.tolist(), inside.tolist(), strict=True):
                texts[place] = chunk.values[row].as_py()
        if self._form is None:
            return texts
        array = np.asarray(texts)  # as the package does, which loses NUL characters at the end of a string
        return list(array) if self._form == "numpy" else array.tolist()

    def _lists(self, parts: list[tuple[_Chunk, Indices, Indices]], count: int) -> object:
        first, _, inside = parts[0]
        assert self._dtype is not None
        assert first.offsets is not None
        width = int(first.offsets[inside[0] + 1] - first.offsets[inside[0]])
        if width == 0:
            return None
        out = memory.empty((count, width), self._dtype)
        for chunk, own, rows in parts:
            assert chunk.offsets is not None
            begins = chunk.offsets[rows]
            if (chunk.offsets[rows + 1] - begins != width).any():
                return None
            out[own] = chunk.values[begins[:, None] + np.arange(width)]
        return out


def _kind(package: ModuleType, feature: Any, kind: Any) -> str | None:
    """Return how to read a column: "number", "text" or "list"; None if it is not supported."""
    types = sys.modules["pyarrow"].types
    features = package.features
    if type(feature) in (features.Value, features.ClassLabel):
        if types.is_integer(kind) or types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind):
            return "number"
        return "text" if types.is_string(kind) or types.is_large_string(kind) else None
    lists = [getattr(features, name, None) for name in ("List", "LargeList", "Sequence")]
    if type(feature) in [one for one in lists if isinstance(one, type)]:
        plain = types.is_list(kind) or types.is_large_list(kind)
        return "list" if plain and _kind(package, feature.feature, kind.value_type) == "number" else None
    return None


def _batch_dtype(dtype: np.dtype[np.generic] | None, form: str | None) -> np.dtype[np.generic] | None:
    """Return the type of numbers in a batch; None if it is unsupported.

    Integers become int64; floats become float64 without a format, else float32.
    """
    if dtype is None or dtype == np.uint64:  # values above the int64 range fit no type
        return None
    if dtype == np.bool_:
        return np.dtype(np.bool_)
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    return np.dtype(np.float64 if form is None else np.float32)
