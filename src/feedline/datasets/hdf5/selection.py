"""Rows of an HDF5 dataset that HDF5 itself reads, with as few calls as it allows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline._optional import require

Indices = NDArray[np.int64]


# Any, in this file: h5py has no type annotations.
class Selection:
    """Reads rows of an open HDF5 dataset. Threads may use it at the same time: h5py lets in one at a time.

    Args:
        dataset: of h5py, open.
    """

    def __init__(self, dataset: Any) -> None:
        h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
        self._id = dataset.id
        self._make_space = h5py.h5s.create_simple
        self._row_shape = tuple(dataset.shape[1:])
        self.dtype: np.dtype[Any] = dataset.dtype
        """Of what h5py reads."""
        self._type = None
        if self.dtype.subdtype is not None:  # in memory its axes are axes of the array
            base, shape = self.dtype.subdtype
            self._type = h5py.h5t.py_create(np.dtype((base.newbyteorder("="), shape)))

    def leaves_bytes_swapped(self) -> bool:
        """True if arrays of any length arrive in the byte order of the file, although they say otherwise."""
        h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
        base = h5py.check_vlen_dtype(self.dtype)
        return base is not None and not np.dtype(base).isnative and _mistakes_byte_order()

    def read_rows(self, rows: Indices, out: NDArray[Any]) -> None:
        """Read rows, ascending and each once."""
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

    def read_run(self, first: int, out: NDArray[Any]) -> None:
        """Read as many rows as `out` has, from one on."""
        space = self._id.get_space()
        space.select_hyperslab((first, *[0] * len(self._row_shape)), (len(out), *self._row_shape))
        self._read(space, out)

    def _read(self, space: Any, out: NDArray[Any]) -> None:
        self._id.read(self._make_space((len(out), *self._row_shape)), space, out, self._type)


@functools.cache
def _mistakes_byte_order() -> bool:
    """Find out whether h5py hands over arrays of any length as they lie in the file: 3.16 does, in every byte order."""
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    foreign = np.dtype(np.int16).newbyteorder()
    with h5py.File("byte order", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(foreign))
        dataset[0] = np.array([1], foreign)
        return bool(dataset[0][0] != 1)


def runs(numbers: Indices, *, step: int) -> Iterator[tuple[int, int]]:
    """Yield where runs begin and end in which each number is the one before plus `step`.

    Example:
        >>> list(runs(np.array([3, 4, 5, 9]), step=1)), list(runs(np.array([3, 3, 5]), step=0))
        ([(0, 3), (3, 4)], [(0, 2), (2, 3)])
    """
    ends = np.flatnonzero(np.diff(numbers) != step) + 1
    return itertools.pairwise([0, *ends.tolist(), len(numbers)])
