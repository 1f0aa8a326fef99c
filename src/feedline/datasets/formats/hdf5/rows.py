"""Ways to read the rows of a field: from the mapped file, decompressed chunk by chunk, or through HDF5.

All give the same values, bit for bit; `rows_of` chooses the fastest that the layout of the field allows.
"""

from __future__ import annotations

import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.fields import BYTES, NUMBERS, RAGGED, Field
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.errors import CorruptSource, MissingExtra
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.sizes import check_size

if TYPE_CHECKING:
    from h5py import Dataset
    from h5py.h5d import StoreInfo

Indices = NDArray[np.int64]

Mapped = NDArray[np.uint8]
"""The bytes of a mapped file."""

Cells = NDArray[np.void]
"""One void item per row, contiguous or not."""

ChunkCache = BoundedCache[Hashable, Cells]
"""Decompressed chunks, cached up to a number of bytes."""

_LARGE = 2048
"""Cells of at least this many bytes are copied one by one: the calls cost less than an intermediate copy."""
_LARGEST_CHUNK = 256 << 20
"""Maximum size in bytes of the rows that overlap one chunk; beyond it, they are not read together."""
_LARGEST_CELL = 1 << 30
"""Maximum size in bytes of a row that is handled as one NumPy item, well below NumPy's limit."""
_ENTRY_BYTES = 8
"""Minimum size in bytes of a chunk's address in a file."""


class Rows(ABC):
    """The rows of a field in one open file."""

    # Any, in subclasses: an array for numbers, a list for values.

    @abstractmethod
    def fill(self, out: object, rows: Indices, places: Indices | None) -> None:
        """Write rows to places of `out`; to all of it, in order, if `places` is None. Values need a list as `out`."""


def rows_of(dataset: Dataset, field: Field, mapped: Mapped | None, cache: ChunkCache, key: Hashable) -> Rows:
    """Return the fastest reader for the rows of a field.

    `mapped` is the mapped file, or None if it cannot be mapped. `key` distinguishes the chunks of this file and field
    from all others in the cache.
    """
    if field.kind != NUMBERS:
        return ValueRows(dataset, field)
    if mapped is None or len(dataset) == 0 or not 0 < field.row_bytes <= _LARGEST_CELL:
        return SelectedRows(dataset, field)
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    plist = dataset.id.get_create_plist()
    stored = dataset.dtype
    # Numbers stored as in NumPy, apart from the byte order: neither of odd precision nor padded.
    is_plain = stored.subdtype is None and dataset.id.get_type() == h5py.h5t.py_create(stored, logical=True)
    if is_plain and plist.get_external_count() == 0 and dataset.file.userblock_size == 0:
        found = _mapped_rows(dataset, field.row_bytes, mapped, cache, key)
        if found is not None:
            return found
    count = int(dataset.chunks[0]) if dataset.chunks and plist.get_nfilters() > 0 else 0
    if not 0 < count * field.row_bytes <= _LARGEST_CHUNK:
        return SelectedRows(dataset, field)
    return PackedRows(ByHDF5(Selection(dataset), field, count, len(dataset)), count, cache, key)


def _mapped_rows(dataset: Dataset, row_bytes: int, mapped: Mapped, cache: ChunkCache, key: Hashable) -> Rows | None:
    """Return a reader that needs only the mapped file, or None if rows are not stored whole or use other filters."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    plist, stored = dataset.id.get_create_plist(), np.dtype(dataset.dtype.str)
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
    name = f"{dataset.name} in {dataset.file.filename}"
    unpack = ByInflating(mapped, addresses, sizes, stored, chunk_bytes, row_bytes, is_shuffled, name, _inflate())
    return PackedRows(unpack, count, cache, key)


def _chunks(dataset: Dataset, file_bytes: int) -> tuple[Indices, Indices] | None:
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


def _check_fits(end: int, mapped: Mapped, dataset: Dataset) -> None:
    check_size(f"{dataset.file.filename} with {dataset.name!r} in it", end, held=len(mapped))


def cells_of(rows: NDArray[np.generic]) -> Cells:
    """Return the rows of a contiguous array, at least one byte each, as cells of the same memory."""
    size = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    found: Cells = np.ndarray((len(rows),), f"V{size}", rows)
    return found


def _copy(source: Cells, numbers: Indices, cells: Cells, places: Indices | None) -> None:
    """Copy some cells of `source` to places of `cells`; to all of them, in order, if `places` is None.

    NumPy releases the GIL meanwhile, so other threads run while pages are read from disk.
    """
    if cells.itemsize < _LARGE:
        cells[slice(None) if places is None else places] = source[numbers]
        return
    goals = range(len(numbers)) if places is None else places.tolist()
    for goal, number in zip(goals, numbers.tolist(), strict=True):
        cells[goal : goal + 1] = source[number : number + 1]


class _RawRows(Rows):
    """Rows stored as in memory, apart from the byte order."""

    def __init__(self, *, swapped: bool) -> None:
        self._swapped = swapped

    @abstractmethod
    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        """Copy rows without converting them."""

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        self._copy(cells_of(out), rows, places)
        if self._swapped and places is None:
            out.byteswap(inplace=True)
        elif self._swapped:
            out[places] = out[places].byteswap()


class MappedRows(_RawRows):
    """Consecutive rows in the mapped file, from `offset` on."""

    def __init__(self, mapped: Mapped, row_bytes: int, offset: int, length: int, *, swapped: bool) -> None:
        super().__init__(swapped=swapped)
        self._rows: Cells = np.ndarray((length,), f"V{row_bytes}", mapped, offset)

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        if places is None:
            self._rows.take(rows, 0, out=cells, mode="wrap")  # "raise" would make a second copy
        else:
            _copy(self._rows, rows, cells, places)


class ChunkedRows(_RawRows):
    """Rows in uncompressed chunks of the mapped file; `addresses` has the offset of each chunk."""

    def __init__(self, mapped: Mapped, row_bytes: int, addresses: Indices, chunk_rows: int, *, swapped: bool) -> None:
        super().__init__(swapped=swapped)
        self._addresses = addresses
        self._chunk_rows = chunk_rows
        self._row_bytes = row_bytes
        # One cell starting at every byte: the cells overlap, and the cell at an address has that index.
        self._cells: Cells = np.ndarray((len(mapped) - row_bytes + 1,), f"V{row_bytes}", mapped, 0, (1,))

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        chunks, within = np.divmod(rows, self._chunk_rows)
        _copy(self._cells, self._addresses[chunks] + within * self._row_bytes, cells, places)


@dataclass(frozen=True, eq=False)
class PackedRows(Rows):
    """Rows in chunks that are decompressed as a whole, once per batch; recently used chunks are cached."""

    _unpack: Callable[[int], Cells]
    """Returns the rows of a chunk, given its number."""
    _chunk_rows: int
    _cache: ChunkCache
    _key: Hashable

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        cells = cells_of(out)
        numbers, within = np.divmod(rows, self._chunk_rows)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        goals = order if places is None else places[order]
        within = within[order]
        for start, stop in runs(numbers, step=0):
            _copy(self._chunk(int(numbers[start])), within[start:stop], cells, goals[start:stop])

    def _chunk(self, number: int) -> Cells:
        key = (self._key, number)
        chunk = self._cache.get(key)
        if chunk is None:
            chunk = self._unpack(number)
            # Chunks of one row are not read again in the same epoch, and would evict others.
            if self._chunk_rows > 1 and chunk.nbytes <= self._cache.limit:
                self._cache.put(key, chunk, chunk.nbytes)
        return chunk


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class ByInflating:
    """Decompresses chunks of whole rows from the mapped file, compressed with gzip, with or without shuffled bytes.

    This takes no lock, so threads decompress concurrently. With libdeflate (the package `deflate`) it takes half as
    long as HDF5.
    """

    _mapped: Mapped
    _addresses: Indices
    """Offset of each chunk in the file."""
    _sizes: Indices
    """Compressed size of each chunk."""
    _stored: np.dtype[np.generic]
    """The type of the numbers in the file, with its byte order."""
    _chunk_bytes: int
    """Decompressed size of a chunk."""
    _row_bytes: int
    _shuffled: bool
    """True if the file has the first bytes of all numbers first, then the second bytes, and so on."""
    _name: str
    """For error messages."""
    _inflate: Callable[[memoryview, int], bytes | bytearray]
    """Decompresses zlib data, given the decompressed size."""

    def __call__(self, number: int) -> Cells:
        start = int(self._addresses[number])
        packed = self._mapped[start : start + int(self._sizes[number])].data
        try:
            unpacked = self._inflate(packed, self._chunk_bytes)
        except Exception as exc:  # each library has an error of its own
            raise CorruptSource(f"Chunk {number} of {self._name} cannot be decompressed: {words(exc)}.") from exc
        if len(unpacked) != self._chunk_bytes:
            raise CorruptSource(
                f"Chunk {number} of {self._name} decompresses to {len(unpacked)} bytes, not {self._chunk_bytes}."
            )
        data = np.frombuffer(unpacked, np.uint8)
        if self._shuffled:  # put the bytes of each number next to each other
            planes = data.reshape(self._stored.itemsize, -1)
            data = np.empty(planes.shape[::-1], np.uint8)
            for place, plane in enumerate(planes):
                data[:, place] = plane
            data = data.reshape(-1)
        if not self._stored.isnative:
            data = data.view(self._stored).byteswap().view(np.uint8)
        return cells_of(data.reshape(-1, self._row_bytes))


def _inflate() -> Callable[[memoryview, int], bytes | bytearray]:
    try:
        found: Callable[[memoryview, int], bytes | bytearray] = require(
            "deflate", extra="hdf5", purpose="Unpacking gzip quickly"
        ).zlib_decompress
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


class Selection:
    """Reads rows of an open HDF5 dataset. Several threads may use it; h5py admits one at a time."""

    def __init__(self, dataset: Dataset) -> None:
        h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
        self._id = dataset.id
        self._make_space = h5py.h5s.create_simple
        self._row_shape = tuple(dataset.shape[1:])
        self.dtype: np.dtype[np.generic] = dataset.dtype
        """The type that h5py reads."""
        self._type = None
        if self.dtype.subdtype is not None:  # in memory, its axes are axes of the array
            base, shape = self.dtype.subdtype
            self._type = h5py.h5t.py_create(np.dtype((base.newbyteorder("="), shape)))

    def unique_rows(
        self, rows: Indices, row_shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> tuple[Indices, NDArray[np.generic], Indices]:
        """Return the rows that are wanted, without repetition, their values, and the place of each in `rows`."""
        wanted, where = np.unique(rows, return_inverse=True)
        found = np.empty((len(wanted), *row_shape), dtype)
        if found.size:
            stretches = list(runs(wanted, step=1))
            if len(stretches) > 1 and not self._row_shape:
                space = self._id.get_space()
                space.select_elements(wanted.reshape(-1, 1))
                self._read(space, found)
            else:
                for start, stop in stretches:
                    self.read_run(int(wanted[start]), found[start:stop])
        return wanted, found, where

    def read_run(self, first: int, out: NDArray[np.generic]) -> None:
        """Read consecutive rows, as many as `out` has, starting with row `first`."""
        space = self._id.get_space()
        space.select_hyperslab((first, *[0] * len(self._row_shape)), (len(out), *self._row_shape))
        self._read(space, out)

    def _read(self, space: object, out: NDArray[np.generic]) -> None:
        self._id.read(self._make_space((len(out), *self._row_shape)), space, out, self._type)


def runs(numbers: Indices, *, step: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run in which every number is its predecessor plus `step`."""
    ends = np.flatnonzero(np.diff(numbers) != step) + 1
    return itertools.pairwise([0, *ends.tolist(), len(numbers)])


class SelectedRows(Rows):
    """Rows that HDF5 reads and converts."""

    def __init__(self, dataset: Dataset, field: Field) -> None:
        self._selection = Selection(dataset)
        self._field = field

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        _, found, where = self._selection.unique_rows(rows, self._field.row_shape, self._field.dtype)
        out[slice(None) if places is None else places] = found[where]


class ValueRows(Rows):
    """Variable-length values."""

    def __init__(self, dataset: Dataset, field: Field) -> None:
        self._selection = Selection(dataset)
        self._field = field
        self._path = dataset.file.filename

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        wanted, found, where = self._selection.unique_rows(rows, self._field.row_shape, self._selection.dtype)
        values = [self._value(value, row) for value, row in zip(found, wanted.tolist(), strict=True)]
        is_once = len(wanted) == len(rows)
        goals = range(len(rows)) if places is None else places.tolist()
        for place, number in zip(goals, where.tolist(), strict=True):
            # A row that occurs twice gets an array for each occurrence: the caller may write to one.
            out[place] = values[number] if is_once else _copied(values[number])

    # Any: an array, a string or bytes, as h5py returns them.
    def _value(self, value: Any, row: int, depth: int = 0) -> object:
        if depth < len(self._field.row_shape):
            return [self._value(one, row, depth + 1) for one in value]
        if self._field.kind == BYTES:
            return np.asarray(value, np.uint8).tobytes()
        if self._field.kind == RAGGED:
            return np.array(value, self._field.dtype)
        try:
            return value if isinstance(value, str) else bytes(value).decode()
        except UnicodeDecodeError as exc:
            raise CorruptSource(
                f"The text of field {self._field.name!r} in row {row} of {self._path} is not UTF-8: {words(exc)}. "
                "Store bytes that are not text in a variable-length uint8 dataset."
            ) from exc


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value.copy() if isinstance(value, np.ndarray) else value
