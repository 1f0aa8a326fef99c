"""The heaps in which HDF5 keeps values of any length.

HDF5 (2.0) believes what stands in a heap: it goes round for ever in one that has zeros where the size of a value should
be. So each heap is gone through before HDF5 reads the first value from it, wherever `layout.py` can tell where values
are: not in files that cannot be mapped, nor in chunks that lack a filter (HDF5 leaves out shuffling).
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.hdf5.part import Stamp, stamp_of
from feedline.errors import CorruptSource
from feedline.values.sizes import check_size

REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
"""What stands in the place of a value: where it is."""
_HEAD = struct.Struct("<4s4xQ")
_VALUE = struct.Struct("<H6xQ")
_ALIGN = 8
Fill = Callable[[NDArray[Any], NDArray[np.int64], None], None]
_NOWHERE = 0
"""Where values are that were never written."""


@functools.lru_cache(maxsize=64)
def _sound(path: str, stamp: Stamp) -> set[int]:
    """Return where the heaps of a file are that were gone through in this process: a set to add to."""
    return {_NOWHERE}


@functools.lru_cache(maxsize=64)
def _sound_rows(path: str, stamp: Stamp, name: str, count: int) -> NDArray[np.bool_]:
    """Return which rows of a field have all of their values in such heaps: an array to write to."""
    return np.zeros(count, np.bool_)


class Heaps:
    """The heaps that the values of a field lie in."""

    def __init__(self, mapped: Any, path: str, name: str, fill: Fill, shape: tuple[int, ...]) -> None:
        self._mapped = mapped
        self._path = path
        self._fill = fill
        self._row_shape = shape[1:]
        stamp = stamp_of(os.stat(path))
        self._sound = _sound(path, stamp)
        self._rows = _sound_rows(path, stamp, name, shape[0])

    def check(self, rows: NDArray[np.int64]) -> None:
        """Go through the heaps of some rows, unless that was done. Raises CorruptSource: one is damaged."""
        if self._rows[rows].all():
            return
        references = np.empty((len(rows), *self._row_shape), REFERENCE)
        self._fill(references, rows, None)
        for address in sorted(set(references["heap"].ravel().tolist()) - self._sound):
            self._check(address)
            self._sound.add(address)
        self._rows[rows] = True

    def _check(self, address: int) -> None:
        where, held = f"{self._path}: a heap at byte {address}", len(self._mapped)
        check_size(where, address + _HEAD.size, held=held)
        magic, size = _HEAD.unpack_from(self._mapped, address)
        check_size(where, address + size, held=held)
        at, end = address + _HEAD.size, address + size
        mapped, unpack, head_bytes, last = self._mapped, _VALUE.unpack_from, _VALUE.size, end - _VALUE.size
        while magic == b"GCOL" and at <= last:
            number, length = unpack(mapped, at)
            # Number 0 is what is free, and its length counts from here.
            step = head_bytes + -(-length // _ALIGN) * _ALIGN if number else length
            if step < head_bytes or at + step > end:
                break
            at += step
        if magic != b"GCOL" or at <= last:
            raise CorruptSource(f"{where} is damaged: values in it do not follow each other. Write or copy it again.")
