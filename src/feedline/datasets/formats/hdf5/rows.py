"""The ways in which the rows of a field are stored in a file, and the best way to read each.

    MappedRows     consecutive rows: gathered from the mapped file
    ChunkedRows    uncompressed chunks: the same, with an address for each chunk
    PackedRows     compressed chunks: each is decompressed once for all its rows in a batch
    SelectedRows   any other layout, and files that are being written: HDF5 selects the rows
    ValueRows      variable-length text, bytes and arrays: HDF5 selects the values

Several threads may use each of them concurrently.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.part import BYTES, RAGGED, Field
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require

if TYPE_CHECKING:
    import mmap

    from h5py import Dataset

Cells = NDArray[np.void]
"""One void item per row, contiguous or not."""

ChunkCache = BoundedCache[Hashable, Cells]
"""Decompressed chunks, cached up to a number of bytes."""

_LARGE = 2048
"""Cells of at least this many bytes are copied one by one: the calls cost less than an intermediate copy."""


def cells_of(rows: NDArray[np.generic]) -> Cells:
    """Return the rows of a contiguous array, at least one byte each, as cells of the same memory."""
    count = len(rows)
    size = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    found: Cells = np.ndarray((count,), f"V{size}", rows)
    return found


def copy(source: Cells, numbers: NDArray[np.int64], cells: Cells, places: NDArray[np.int64] | None) -> None:
    """Copy some cells of `source` to places of `cells`; to all of them, in order, if `places` is None.

    NumPy releases the GIL meanwhile, so other threads run while pages are read from disk.
    """
    if cells.itemsize < _LARGE:
        if places is None:
            cells[:] = source[numbers]
        else:
            cells[places] = source[numbers]
        return
    goals = range(len(numbers)) if places is None else places.tolist()
    for goal, number in zip(goals, numbers.tolist(), strict=True):
        cells[goal : goal + 1] = source[number : number + 1]


Indices = NDArray[np.int64]


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

    def leaves_bytes_swapped(self) -> bool:
        """True if variable-length arrays arrive in the byte order of the file although their dtype claims otherwise."""
        h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
        base = h5py.check_vlen_dtype(self.dtype)
        return base is not None and not np.dtype(base).isnative and _mistakes_byte_order()

    def read_rows(self, rows: Indices, out: NDArray[np.generic]) -> None:
        """Read rows, which must be ascending and unique."""
        if out.size == 0:
            return
        found = list(runs(rows, step=1))
        if len(found) > 1 and not self._row_shape:
            space = self._id.get_space()
            space.select_elements(rows.reshape(-1, 1))
            self._read(space, out)
            return
        for start, stop in found:
            self.read_run(int(rows[start]), out[start:stop])

    def read_run(self, first: int, out: NDArray[np.generic]) -> None:
        """Read consecutive rows, as many as `out` has, starting with row `first`."""
        space = self._id.get_space()
        space.select_hyperslab((first, *[0] * len(self._row_shape)), (len(out), *self._row_shape))
        self._read(space, out)

    def _read(self, space: object, out: NDArray[np.generic]) -> None:
        self._id.read(self._make_space((len(out), *self._row_shape)), space, out, self._type)


@functools.cache
def _mistakes_byte_order() -> bool:
    """True if h5py returns variable-length arrays in the byte order of the file, without conversion; 3.16 does."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    foreign = np.dtype(np.int16).newbyteorder()
    with h5py.File("byte order", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(foreign))
        dataset[0] = np.array([1], foreign)
        return bool(dataset[0][0] != 1)


def runs(numbers: Indices, *, step: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run in which every number is its predecessor plus `step`."""
    ends = np.flatnonzero(np.diff(numbers) != step) + 1
    return itertools.pairwise([0, *ends.tolist(), len(numbers)])


Unpack = Callable[[int], Cells]
"""Returns the rows of a chunk, given the chunk's number."""


class Rows(ABC):
    """The rows of a field in one open file."""

    # Any, in subclasses: an array for numbers, a list for values.

    @abstractmethod
    def fill(self, out: object, rows: Indices, places: Indices | None) -> None:
        """Write rows to places of `out`; to all of it, in order, if `places` is None. Values need a list as `out`."""


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

    def __init__(self, mapped: mmap.mmap, row_bytes: int, offset: int, length: int, *, swapped: bool) -> None:
        super().__init__(swapped=swapped)
        self._rows: Cells = np.ndarray((length,), f"V{row_bytes}", mapped, offset)

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        if places is None:
            self._rows.take(rows, 0, out=cells, mode="wrap")  # "raise" would make a second copy
        else:
            copy(self._rows, rows, cells, places)


class ChunkedRows(_RawRows):
    """Rows in uncompressed chunks of the mapped file; `addresses` has the offset of each chunk."""

    def __init__(
        self, mapped: mmap.mmap, row_bytes: int, addresses: Indices, chunk_rows: int, *, swapped: bool
    ) -> None:
        super().__init__(swapped=swapped)
        self._addresses = addresses
        self._chunk_rows = chunk_rows
        self._row_bytes = row_bytes
        # One cell starting at every byte: the cells overlap, and the cell at an address has that index.
        count = len(mapped) - row_bytes + 1
        self._cells: Cells = np.ndarray((count,), f"V{row_bytes}", mapped, 0, (1,))

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        chunks, within = np.divmod(rows, self._chunk_rows)
        copy(self._cells, self._addresses[chunks] + within * self._row_bytes, cells, places)


@dataclass(frozen=True, eq=False)
class PackedRows(Rows):
    """Rows in chunks that are decompressed as a whole, once per batch; recently used chunks are cached."""

    _unpack: Unpack
    _chunk_rows: int
    _cache: ChunkCache | None
    _key: Hashable

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        cells = cells_of(out)
        numbers, within = np.divmod(rows, self._chunk_rows)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        goals = order if places is None else places[order]
        within = within[order]
        for start, stop in runs(numbers, step=0):
            copy(self._chunk(int(numbers[start])), within[start:stop], cells, goals[start:stop])

    def _chunk(self, number: int) -> Cells:
        if self._cache is None:
            return self._unpack(number)
        key = (self._key, number)
        chunk = self._cache.get(key)
        if chunk is None:
            chunk = self._unpack(number)
            if chunk.nbytes <= self._cache.limit:
                self._cache.put(key, chunk, chunk.nbytes)
        return chunk


@dataclass(frozen=True, eq=False)
class SelectedRows(Rows):
    """Rows that HDF5 reads and converts."""

    _selection: Selection
    _field: Field

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        wanted, where = np.unique(rows, return_inverse=True)
        found = np.empty((len(wanted), *self._field.row_shape), self._field.dtype)
        self._selection.read_rows(wanted, found)
        out[slice(None) if places is None else places] = found[where]


class ValueRows(Rows):
    """Variable-length values."""

    def __init__(self, selection: Selection, field: Field, path: str) -> None:
        self._selection = selection
        self._field = field
        self._path = path
        self._swapped = field.kind == RAGGED and selection.leaves_bytes_swapped()

    def fill(self, out: Any, rows: Indices, places: Indices | None) -> None:
        wanted, where = np.unique(rows, return_inverse=True)
        found = np.empty((len(wanted), *self._field.row_shape), self._selection.dtype)
        self._selection.read_rows(wanted, found)
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
            return np.array(value.byteswap() if self._swapped else value, self._field.dtype)
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
