"""Hugging Face `datasets`: read a batch as columns from the underlying Arrow tables.

The package is not imported here: without it no such dataset can exist. Only exact types are recognised, and only if
their samples are numbers, strings, lists of numbers of one length or arrays, in the formats None, "numpy" and "torch".
A column is converted as that format converts it. The result equals fetching and collating single samples, bit for bit;
data for which that is not certain takes the slow path.
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


class Positions(list[object]):
    """Arrays, one per list position: the collated form of lists of equal length."""


ReadColumns = Callable[[Indices], "dict[str, object] | None"]
"""Returns the columns of some samples: arrays with a row per sample, lists of strings, positions.

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


def ranks_of_stream(dataset: object) -> int | None:
    """Return the number of ranks that a Hugging Face streaming dataset is split over; None for any other dataset.

    Such a dataset splits itself over the workers of a torch loader, with `get_worker_info()`, and over ranks if it
    comes from `split_dataset_by_node`.
    """
    kind = getattr(sys.modules.get("datasets.iterable_dataset"), "IterableDataset", None)
    if kind is None or not isinstance(dataset, kind):
        return None
    split = dataset._distributed  # not public
    return 1 if split is None else int(split.world_size)


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
    names = [name for name in table.column_names if name in chosen]
    columns: dict[str, _Column] = {}
    cuts: list[NDArray[np.int64]] = []
    for name in names:
        column = _Column.of(package, dataset.features[name], table.column(name), form["type"])
        if column is None:
            return None
        columns[name] = column
        if not any(np.array_equal(column.starts, starts) for starts in cuts):
            cuts.append(column.starts)
    which = {
        name: next(n for n, cut in enumerate(cuts) if np.array_equal(c.starts, cut)) for name, c in columns.items()
    }
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy().astype(np.int64, copy=False)
    count = len(dataset)

    def read(indices: Indices) -> dict[str, object] | None:
        if len(indices) == 0 or indices.min() < -count or indices.max() >= count:
            return None  # the dataset itself raises the right error
        if indices.min() < 0:
            indices = indices % count
        own = indices if rows is None else rows[indices]
        parts = [_parts(own, starts) for starts in cuts]  # most columns have the same chunks
        found = {}
        for name, column in columns.items():
            values = column.take(parts[which[name]], len(own))
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
        prepared = [_prepared(kind, chunk) for chunk in chunks]
        if kind == "text":
            return cls([chunk for chunk in prepared if chunk is not None], starts, None, form)
        dtypes = {None if chunk is None else chunk.values.dtype for chunk in prepared}
        dtype = _batch_dtype(dtypes.pop(), form) if len(dtypes) == 1 else None
        if dtype is None or (kind == "array" and form is None):  # would be nested Python lists
            return None
        return cls([chunk for chunk in prepared if chunk is not None], starts, dtype, form)

    def take(self, where: list[_Part], count: int) -> object:
        """Return the column of a batch; None if its rows do not fit together."""
        parts = [(self._chunks[owner], own, inside) for owner, own, inside in where]
        if self._dtype is None:
            return self._texts(parts, count)
        if self._chunks[0].offsets is not None:
            return self._lists(parts, count)
        shape = self._chunks[0].values.shape[1:]
        if shape and self._form is None:
            turned = memory.empty((*shape, count), self._dtype)
            for chunk, own, inside in parts:
                turned[:, own] = chunk.values[inside].T
            return Positions(turned)
        out = memory.empty((count, *shape), self._dtype)
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
        turned = self._form is None
        out = memory.empty((width, count) if turned else (count, width), self._dtype)
        across = np.arange(width)
        for chunk, own, rows in parts:
            assert chunk.offsets is not None
            begins = chunk.offsets[rows]
            if not np.array_equal(chunk.offsets[rows + 1] - begins, np.full(len(rows), width)):
                return None
            taken = chunk.values[begins[:, None] + across]
            if turned:
                out[:, own] = taken.T
            else:
                out[own] = taken
        return Positions(out) if turned else out


def _kind(package: ModuleType, feature: Any, kind: Any) -> str | None:
    """Return how to read a column: "number", "text", "list", "fixed" or "array"; None if it is not supported."""
    types = sys.modules["pyarrow"].types
    features = package.features
    if type(feature) in (features.Value, features.ClassLabel):
        if types.is_integer(kind) or types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind):
            return "number"
        return "text" if types.is_string(kind) or types.is_large_string(kind) else None
    lists = [getattr(features, name) for name in ("List", "LargeList", "Sequence") if hasattr(features, name)]
    if type(feature) in [one for one in lists if isinstance(one, type)]:
        plain = types.is_list(kind) or types.is_large_list(kind)
        fixed = types.is_fixed_size_list(kind) and kind.list_size > 0
        if (plain or fixed) and _kind(package, feature.feature, kind.value_type) == "number":
            return "list" if plain else "fixed"
        return None
    if type(feature) in (features.Array2D, features.Array3D, features.Array4D, features.Array5D):
        return "array" if None not in feature.shape else None
    return None


def _prepared(kind: str, chunk: Any) -> _Chunk | None:
    """Convert a chunk for reading; None if it contains nulls."""
    if kind == "text":
        return _Chunk(chunk)
    if kind == "number":
        return _Chunk(chunk.to_numpy(zero_copy_only=False))
    if kind == "array":
        shape, storage = chunk.type.shape, chunk.storage
        while hasattr(storage.type, "value_type"):  # nested lists, all of the same lengths
            storage = storage.flatten()
        if storage.null_count or len(storage) != len(chunk) * int(np.prod(shape)):
            return None
        return _Chunk(storage.to_numpy(zero_copy_only=False).reshape(len(chunk), *shape))
    if kind == "fixed":
        numbers = chunk.flatten()  # the numbers of these rows only; no list is null
        if numbers.null_count:
            return None
        return _Chunk(numbers.to_numpy(zero_copy_only=False).reshape(len(chunk), -1))
    if chunk.values.null_count:
        return None
    return _Chunk(chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy())


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
