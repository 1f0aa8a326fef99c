"""Packed chunks: unpacked by HDF5, or by us if we know how."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline._optional import require
from feedline.datasets.hdf5.cells import Cells, cells_of
from feedline.datasets.hdf5.field import Field
from feedline.datasets.hdf5.selection import Selection
from feedline.errors import CorruptSource, MissingExtra
from feedline.failures import words

Inflate = Callable[[Any, int], Any]
"""Unpacks zlib data, given how many bytes come out. Any: buffers."""


class ByHDF5:
    """Unpacks chunks by whatever filters HDF5 has."""

    def __init__(self, selection: Selection, field: Field, chunk_rows: int, length: int) -> None:
        self._selection = selection
        self._field = field
        self._chunk_rows = chunk_rows
        self._length = length

    def __call__(self, number: int) -> Cells:
        first = number * self._chunk_rows
        count = min(self._chunk_rows, self._length - first)
        found = np.empty((count, *self._field.row_shape), self._field.dtype)
        self._selection.read_run(first, found)
        return cells_of(found)


class ByInflating:
    """Unpacks chunks of whole rows that were packed with gzip, with or without shuffled bytes, from the mapped file.

    This needs no lock, so that threads unpack at the same time; with libdeflate (the package `deflate`) it takes half
    the time that HDF5 takes.

    Args:
        mapped: the whole file.
        addresses: where each chunk begins.
        sizes: how many bytes it has there.
        stored: the type of the numbers in the file, in their byte order.
        chunk_bytes: what comes out of a chunk.
        row_bytes: of one row.
        shuffled: True if first bytes come first, then second bytes, and so on.
        path: for errors.
    """

    # Any: a mapped file is any buffer.
    def __init__(
        self,
        mapped: Any,
        addresses: NDArray[np.int64],
        sizes: NDArray[np.int64],
        *,
        stored: np.dtype[Any],
        chunk_bytes: int,
        row_bytes: int,
        shuffled: bool,
        path: str,
    ) -> None:
        self._mapped = memoryview(mapped)
        self._addresses = addresses
        self._sizes = sizes
        self._stored = stored
        self._chunk_bytes = chunk_bytes
        self._row_bytes = row_bytes
        self._shuffled = shuffled and stored.itemsize > 1
        self._path = path
        self._inflate = _inflate()

    def __call__(self, number: int) -> Cells:
        start = int(self._addresses[number])
        packed = self._mapped[start : start + int(self._sizes[number])]
        try:
            unpacked = self._inflate(packed, self._chunk_bytes)
        except Exception as exc:  # each library has an error of its own
            raise CorruptSource(f"Chunk {number} of {self._path} cannot be unpacked: {words(exc)}.") from exc
        if len(unpacked) != self._chunk_bytes:
            raise CorruptSource(
                f"Chunk {number} of {self._path} unpacks to {len(unpacked)} bytes, not to {self._chunk_bytes}."
            )
        data = np.frombuffer(unpacked, np.uint8)
        if self._shuffled:
            data = _unshuffled(data, self._stored.itemsize)
        if not self._stored.isnative:
            data = data.view(self._stored).byteswap().view(np.uint8)
        return cells_of(data.reshape(-1, self._row_bytes))


def _unshuffled(data: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint8]:
    """Put the bytes of each number together again.

    Example:
        >>> _unshuffled(np.array([1, 2, 3, 10, 20, 30], np.uint8), 2).tolist()
        [1, 10, 2, 20, 3, 30]
    """
    out = np.empty((len(data) // item_bytes, item_bytes), np.uint8)
    for place, plane in enumerate(data.reshape(item_bytes, -1)):
        out[:, place] = plane
    return out.reshape(-1)


def _inflate() -> Inflate:
    try:
        found: Inflate = require("deflate", extra="hdf5", purpose="Unpacking gzip quickly").zlib_decompress
    except MissingExtra:
        return lambda packed, size: zlib.decompress(packed, bufsize=size)
    return found
