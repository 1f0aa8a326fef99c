"""Hugging Face `datasets`: read a batch as columns from the underlying Arrow tables.

The package is not imported here: without it no such dataset can exist. Only exact types are recognised, and only if
their samples are numbers, strings, or (in the formats "numpy" and "torch") lists of numbers. The result equals fetching
and collating single samples, bit for bit; data for which that is not certain takes the slow path.
Test: tests/frameworks/test_hugging_face.py
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
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


_Part = tuple[int, Indices, Indices]
"""A chunk's number, the positions in the batch that it fills, and its rows for these positions."""

_Take = Callable[[list[_Part], int], object]
"""Returns a column of a batch; None if its values do not fit together."""


def _parts(rows: Indices, starts: NDArray[np.int64]) -> list[_Part]:
    """Group rows by the chunk they are in; `starts` has the first row of each chunk."""
    owners = np.searchsorted(starts, rows, side="right") - 1
    places = [(owner, np.flatnonzero(owners == owner)) for owner in np.unique(owners).tolist()]
    return [(owner, own, rows[own] - starts[owner]) for owner, own in places]


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
    takes: dict[str, _Take] = {}
    cuts: list[int] = []
    for name in names:
        column = table.column(name)
        take = _column(package, dataset.features[name], column, form["type"])
        lengths = [len(chunk) for chunk in column.chunks if len(chunk)]
        if take is None or (takes and lengths != cuts):
            return None
        takes[name], cuts = take, lengths
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy().astype(np.int64, copy=False)
    count = len(dataset)
    starts = np.cumsum([0, *cuts])

    def read(indices: Indices) -> dict[str, object] | None:
        if len(indices) == 0 or indices.min() < -count or indices.max() >= count:
            return None  # the dataset itself raises the right error
        own = indices % count if rows is None else rows[indices]
        parts = _parts(own, starts)
        found = {name: take(parts, len(own)) for name, take in takes.items()}
        return None if any(values is None for values in found.values()) else found

    return (form["type"], read) if takes else None


def _column(package: ModuleType, feature: object, column: Any, form: str | None) -> _Take | None:
    """Return how to take values of one column; None if it has to be read sample by sample."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    kind = _kind(package, feature, column.type)
    if kind is None or not chunks or any(chunk.null_count for chunk in chunks):
        return None
    if kind == "text":
        return functools.partial(_texts, chunks, form)
    is_list = kind == "list"
    if is_list and (form is None or any(chunk.values.null_count for chunk in chunks)):
        return None  # without a format, torch collates lists position by position
    values = [(chunk.values if is_list else chunk).to_numpy(zero_copy_only=False) for chunk in chunks]
    dtype = _batch_dtype(values[0].dtype, form) if len({array.dtype for array in values}) == 1 else None
    if dtype is None:
        return None
    if is_list:
        return functools.partial(_lists, values, [chunk.offsets.to_numpy() for chunk in chunks], dtype)
    return functools.partial(_numbers, values, dtype)


def _numbers(chunks: list[NDArray[Any]], dtype: np.dtype[Any], parts: list[_Part], count: int) -> object:
    out = memory.empty((count,), dtype)
    for owner, own, inside in parts:
        out[own] = chunks[owner][inside]
    return out


def _texts(chunks: list[Any], form: str | None, parts: list[_Part], count: int) -> object:
    texts: list[object] = [None] * count
    for owner, own, inside in parts:
        for place, row in zip(own.tolist(), inside.tolist(), strict=True):
            texts[place] = chunks[owner][row].as_py()
    if form is None:
        return texts
    array = np.asarray(texts)  # as the package does, which loses NUL characters at the end of a string
    return list(array) if form == "numpy" else array.tolist()


def _lists(
    chunks: list[NDArray[Any]],
    offsets: list[NDArray[np.integer[Any]]],
    dtype: np.dtype[Any],
    parts: list[_Part],
    count: int,
) -> object:
    """Return lists as rows of an array; None if they differ in length, or are empty."""
    first, _, inside = parts[0]
    width = int(offsets[first][inside[0] + 1] - offsets[first][inside[0]])
    out = memory.empty((count, width), dtype)
    for owner, own, rows in parts:
        begins = offsets[owner][rows]
        if width == 0 or (offsets[owner][rows + 1] - begins != width).any():
            return None
        out[own] = chunks[owner][begins[:, None] + np.arange(width)]
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


def _batch_dtype(dtype: np.dtype[np.generic], form: str | None) -> np.dtype[np.generic] | None:
    """Return the type of numbers in a batch; None if it is unsupported.

    Integers become int64; floats become float64 without a format, else float32.
    """
    if dtype == np.uint64:  # values above the int64 range fit no type
        return None
    if dtype == np.bool_:
        return np.dtype(np.bool_)
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    return np.dtype(np.float64 if form is None else np.float32)
