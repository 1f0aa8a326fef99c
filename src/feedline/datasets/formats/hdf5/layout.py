"""How the rows of a field are stored in a file, and the reader that this calls for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.part import NUMBERS, Field
from feedline.datasets.formats.hdf5.rows import (
    Cells,
    ChunkCache,
    ChunkedRows,
    MappedRows,
    PackedRows,
    Rows,
    SelectedRows,
    Selection,
    ValueRows,
    cells_of,
)
from feedline.errors import CorruptSource, MissingExtra
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.sizes import check_size

if TYPE_CHECKING:
    import mmap

    from h5py import Dataset
    from h5py.h5d import StoreInfo

Inflate = Callable[[memoryview, int], bytes | bytearray]
"""Decompresses zlib data, given the decompressed size."""


@dataclass(frozen=True)
class ByHDF5:
    """Decompresses chunks through HDF5, with any filter that HDF5 has."""

    _selection: Selection
    _field: Field
    _chunk_rows: int
    _length: int

    def __call__(self, number: int) -> Cells:
        first = number * self._chunk_rows
        count = min(self._chunk_rows, self._length - first)
        found = np.empty((count, *self._field.row_shape), self._field.dtype)
        self._selection.read_run(first, found)
        return cells_of(found)


@dataclass(frozen=True)
class ByInflating:
    """Decompresses chunks of whole rows from the mapped file, compressed with gzip, with or without shuffled bytes.

    This takes no lock, so threads decompress concurrently. With libdeflate (the package `deflate`) it takes half as
    long as HDF5.
    """

    _mapped: memoryview
    _addresses: NDArray[np.int64]
    """Offset of each chunk in the file."""
    _sizes: NDArray[np.int64]
    """Compressed size of each chunk."""
    _stored: np.dtype[np.generic]
    """The type of the numbers in the file, with its byte order."""
    _chunk_bytes: int
    """Decompressed size of a chunk."""
    _row_bytes: int
    _shuffled: bool
    """True if the file has the first bytes of all numbers first, then the second bytes, and so on."""
    _path: str
    """For error messages."""
    _inflate: Inflate

    def __call__(self, number: int) -> Cells:
        start = int(self._addresses[number])
        packed = self._mapped[start : start + int(self._sizes[number])]
        try:
            unpacked = self._inflate(packed, self._chunk_bytes)
        except Exception as exc:  # each library has an error of its own
            raise CorruptSource(f"Chunk {number} of {self._path} cannot be decompressed: {words(exc)}.") from exc
        if len(unpacked) != self._chunk_bytes:
            raise CorruptSource(
                f"Chunk {number} of {self._path} decompresses to {len(unpacked)} bytes, not {self._chunk_bytes}."
            )
        data = np.frombuffer(unpacked, np.uint8)
        if self._shuffled:
            data = _unshuffled(data, self._stored.itemsize)
        if not self._stored.isnative:
            data = data.view(self._stored).byteswap().view(np.uint8)
        return cells_of(data.reshape(-1, self._row_bytes))


def _unshuffled(data: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint8]:
    """Undo HDF5's shuffle filter: put the bytes of each number next to each other."""
    out = np.empty((len(data) // item_bytes, item_bytes), np.uint8)
    for place, plane in enumerate(data.reshape(item_bytes, -1)):
        out[:, place] = plane
    return out.reshape(-1)


def _inflate() -> Inflate:
    try:
        found: Inflate = require("deflate", extra="hdf5", purpose="Unpacking gzip quickly").zlib_decompress
    except MissingExtra:
        return _inflate_with_zlib
    return found


def _inflate_with_zlib(packed: memoryview, size: int) -> bytes:
    """Decompress zlib data to at most `size` bytes: a few bytes may decompress to any number of others.

    Raises ValueError if there is more, or the data is truncated; zlib.error if it is damaged.
    """
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(packed, size)
    if not unpacker.eof:
        # The checksum at the end may still be unread. Decompressing one extra byte shows whether there is more data.
        if unpacker.decompress(unpacker.unconsumed_tail, 1):
            raise ValueError(f"it decompresses to more than {size:,} bytes, so decompression was stopped")
        if not unpacker.eof:
            raise ValueError("it is truncated")
    return unpacked


_LARGEST_CHUNK = 256 << 20
"""Maximum size in bytes of the rows that overlap one chunk; beyond it, they are not read together."""
_LARGEST_CELL = 1 << 30
"""Maximum size in bytes of a row that is handled as one NumPy item, well below NumPy's limit."""
_ENTRY_BYTES = 8
"""Minimum size in bytes of a chunk's address in a file."""


def rows_of(
    dataset: Dataset, field: Field, mapped: mmap.mmap | None, cache: ChunkCache, key: Hashable
) -> tuple[Rows, bool]:
    """Return the fastest reader for the rows of a field, and whether it needs h5py's file to stay open.

    `mapped` is the mapped file, or None if it cannot be mapped, or must not be because it is being written. `key`
    distinguishes the chunks of this file and field from all others.
    """
    if field.kind != NUMBERS:
        return ValueRows(Selection(dataset), field, dataset.file.filename), True
    if mapped is None or len(dataset) == 0 or not 0 < field.row_bytes <= _LARGEST_CELL:
        return SelectedRows(Selection(dataset), field), True
    if _is_as_in_memory(dataset):
        found = _mapped_rows(dataset, dataset.dtype, field.row_bytes, mapped, cache, key)
        if found is not None:
            return found, False
    count = _rows_read_together(dataset)
    if count is None or count * field.row_bytes > _LARGEST_CHUNK:
        return SelectedRows(Selection(dataset), field), True
    return PackedRows(ByHDF5(Selection(dataset), field, count, len(dataset)), count, _useful(cache, count), key), True


def _useful(cache: ChunkCache, chunk_rows: int) -> ChunkCache | None:
    """Return the cache, or None for chunks of one row: they are not reused within an epoch, and would evict others."""
    return cache if chunk_rows > 1 else None


def _rows_read_together(dataset: Dataset) -> int | None:
    """Return how many rows to read at a time, or None if reading them one by one is as good."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    plist = dataset.id.get_create_plist()
    if plist.get_layout() == h5py.h5d.COMPACT:
        return len(dataset)
    if plist.get_layout() == h5py.h5d.CHUNKED and plist.get_nfilters() > 0:
        return int(dataset.chunks[0])
    return None


def _is_as_in_memory(dataset: Dataset) -> bool:
    """True if numbers are stored as in NumPy, apart from the byte order. False for odd precision or padding."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    stored = dataset.dtype
    return stored.subdtype is None and bool(dataset.id.get_type() == h5py.h5t.py_create(stored, logical=True))


def _mapped_rows(
    dataset: Dataset, stored: np.dtype[np.generic], row_bytes: int, mapped: mmap.mmap, cache: ChunkCache, key: Hashable
) -> Rows | None:
    """Return a reader that needs only the mapped file, or None if rows are not stored whole or use other filters."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    plist = dataset.id.get_create_plist()
    if plist.get_external_count() > 0 or dataset.file.userblock_size > 0:
        return None
    if plist.get_layout() == h5py.h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        if offset is None:  # nothing was written yet: all rows are the fill value
            return None
        _check_fits(offset + len(dataset) * row_bytes, mapped, dataset)
        return MappedRows(mapped, row_bytes, offset, len(dataset), swapped=not stored.isnative)
    if plist.get_layout() != h5py.h5d.CHUNKED or tuple(dataset.chunks[1:]) != tuple(dataset.shape[1:]):
        return None
    filters = tuple(plist.get_filter(number)[0] for number in range(plist.get_nfilters()))
    if filters not in ((), (h5py.h5z.FILTER_DEFLATE,), (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE)):
        return None
    chunks = _chunks(dataset, len(mapped))
    if chunks is None:
        return None
    addresses, sizes = chunks
    # A damaged file may have any number here: add as Python integers, which do not overflow.
    for number in np.flatnonzero(addresses > len(mapped) - sizes)[:1]:
        _check_fits(int(addresses[number]) + int(sizes[number]), mapped, dataset)
    count = int(dataset.chunks[0])
    chunk_bytes = count * row_bytes
    if not filters:
        if (sizes != chunk_bytes).any():
            return None
        return ChunkedRows(mapped, row_bytes, addresses, count, swapped=not stored.isnative)
    if chunk_bytes > _LARGEST_CHUNK:
        return None
    is_shuffled = len(filters) == 2 and stored.itemsize > 1
    name, kind = f"{dataset.name} in {dataset.file.filename}", np.dtype(stored.str)
    unpack = ByInflating(
        memoryview(mapped), addresses, sizes, kind, chunk_bytes, row_bytes, is_shuffled, name, _inflate()
    )
    return PackedRows(unpack, count, _useful(cache, count), key)


def _chunks(dataset: Dataset, file_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the offsets of a dataset's chunks in the file, and their sizes.

    None if some are not allocated, so that their rows are the fill value, or skipped a filter.
    """
    rows = int(dataset.chunks[0])
    count = -(-len(dataset) // rows)
    if count * _ENTRY_BYTES > file_bytes:  # a file of a few bytes may declare any number of rows
        return None
    addresses = np.full(count, -1, np.int64)
    sizes = np.zeros_like(addresses)

    def note(chunk: StoreInfo) -> None:
        number = chunk.chunk_offset[0] // rows
        if number < len(addresses) and chunk.byte_offset is not None and chunk.filter_mask == 0:
            addresses[number] = chunk.byte_offset
            sizes[number] = chunk.size

    dataset.id.chunk_iter(note)
    return (addresses, sizes) if addresses.min() >= 0 else None


def _check_fits(end: int, mapped: Sized, dataset: Dataset) -> None:
    check_size(f"{dataset.file.filename} with {dataset.name!r} in it", end, held=len(mapped))
