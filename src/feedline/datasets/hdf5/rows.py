"""The ways in which the rows of a field lie in a file, and how each is read best.

    MappedRows     one after the other: gathered from the mapped file
    ChunkedRows    in chunks that are not packed: the same, with an address for each chunk
    PackedRows     in packed chunks: each is unpacked once for all its rows in a batch
    SelectedRows   in any other way, and while the file is being written: HDF5 selects them
    ValueRows      text, bytes and arrays of any length: HDF5 selects them

All of them are used by several threads at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.hdf5.cells import Cells, ChunkCache, cells_of, copy
from feedline.datasets.hdf5.field import BYTES, RAGGED, Field
from feedline.datasets.hdf5.heaps import Heaps
from feedline.datasets.hdf5.selection import Selection, runs
from feedline.errors import CorruptSource
from feedline.failures import words

Indices = NDArray[np.int64]

Unpack = Callable[[int], Cells]
"""Returns the rows of a chunk, given its number."""


class Rows(ABC):
    """The rows of a field of numbers in one open file."""

    @abstractmethod
    def fill(self, out: NDArray[Any], rows: Indices, places: Indices | None) -> None:
        """Write rows to places of `out`; to all of it, in order, if `places` is None."""


class _RawRows(Rows):
    """Rows that lie in the file as they lie in memory, but for their byte order."""

    def __init__(self, *, swapped: bool) -> None:
        self._swapped = swapped

    @abstractmethod
    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        """Copy rows as they are."""

    def fill(self, out: NDArray[Any], rows: Indices, places: Indices | None) -> None:
        self._copy(cells_of(out), rows, places)
        if self._swapped and places is None:
            out.byteswap(inplace=True)
        elif self._swapped:
            out[places] = out[places].byteswap()


class MappedRows(_RawRows):
    """Rows that lie one after the other in the mapped file, from `offset` on."""

    def __init__(self, mapped: Any, row_bytes: int, offset: int, length: int, *, swapped: bool) -> None:
        super().__init__(swapped=swapped)
        self._rows: Cells = np.ndarray((length,), f"V{row_bytes}", mapped, offset)

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        if places is None:
            self._rows.take(rows, 0, out=cells, mode="wrap")  # "raise" would go through a second copy
        else:
            copy(self._rows, rows, cells, places)


class ChunkedRows(_RawRows):
    """Rows in chunks of the mapped file, of which `addresses` has one each."""

    def __init__(self, mapped: Any, row_bytes: int, addresses: Indices, chunk_rows: int, *, swapped: bool) -> None:
        super().__init__(swapped=swapped)
        self._addresses = addresses
        self._chunk_rows = chunk_rows
        self._row_bytes = row_bytes
        # A cell from every byte on: they overlap, and an address is the number of its cell.
        count = len(mapped) - row_bytes + 1
        self._cells: Cells = np.ndarray((count,), f"V{row_bytes}", mapped, 0, (1,))

    def _copy(self, cells: Cells, rows: Indices, places: Indices | None) -> None:
        chunks, within = np.divmod(rows, self._chunk_rows)
        copy(self._cells, self._addresses[chunks] + within * self._row_bytes, cells, places)


class PackedRows(Rows):
    """Rows in chunks that are unpacked as a whole, each once for a batch; those used last are kept."""

    def __init__(self, unpack: Unpack, chunk_rows: int, cache: ChunkCache | None, key: Hashable) -> None:
        self._unpack = unpack
        self._chunk_rows = chunk_rows
        self._cache = cache
        self._key = key

    def fill(self, out: NDArray[Any], rows: Indices, places: Indices | None) -> None:
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


class SelectedRows(Rows):
    """Rows that HDF5 reads and converts."""

    def __init__(self, selection: Selection, field: Field) -> None:
        self._selection = selection
        self._field = field

    def fill(self, out: NDArray[Any], rows: Indices, places: Indices | None) -> None:
        wanted, where = np.unique(rows, return_inverse=True)
        found = np.empty((len(wanted), *self._field.row_shape), self._field.dtype)
        self._selection.read_rows(wanted, found)
        out[slice(None) if places is None else places] = found[where]


# Any: h5py has no type annotations, and values are of any kind.
class ValueRows:
    """Values of any length."""

    def __init__(self, selection: Selection, field: Field, path: str, heaps: Heaps | None) -> None:
        self._selection = selection
        self._field = field
        self._path = path
        self._heaps = heaps
        self._swapped = field.kind == RAGGED and selection.leaves_bytes_swapped()

    def values(self, rows: Indices) -> list[Any]:
        """Return the values of these rows."""
        wanted, where = np.unique(rows, return_inverse=True)
        found = np.empty((len(wanted), *self._field.row_shape), self._selection.dtype)
        if self._heaps is not None:
            self._heaps.check(wanted)
        self._selection.read_rows(wanted, found)
        values = [self._value(value, row) for value, row in zip(found, wanted.tolist(), strict=True)]
        if len(wanted) == len(rows):
            return [values[number] for number in where.tolist()]
        # Arrays of their own, also for a row that comes twice: somebody may write to one.
        return [_copied(values[number]) for number in where.tolist()]

    def _value(self, value: Any, row: int, depth: int = 0) -> Any:
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
                "Bytes that are no text belong into a variable-length uint8 dataset."
            ) from exc


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value.copy() if isinstance(value, np.ndarray) else value
