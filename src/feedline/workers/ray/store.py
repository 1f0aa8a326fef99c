"""Batches in Ray's object store, as the training process sees them: which memory they may take, and who may write.

Ray hands out what lies in its store as arrays that cannot be written, because several readers may share it. A batch has
one reader, and training loops change batches in place. The store is mapped for reading and writing in every process
(`/proc/self/maps` says so), so that an array over the same memory that can be written does no harm. Should a version of
Ray map it for reading only, batches are copied instead: writing there would end the process.

An object stays in the store, and is not moved or spilled, while an array over it lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from feedline.memory.reading import LARGE_BYTES, Bytes, Copies, Reader, SegmentReader, Views

_MOST_HELD = 4.0
"""How many times its size an array may hold of the store: an object is given back as a whole."""


class Store:
    """What the batches of one loader take of the object store.

    Args:
        budget: bytes that they may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._batches: set[_Batch] = set()
        """Those that are there. One goes with the last array over its memory, on whatever thread that happens."""
        self._areas: list[Area] = []
        """Of the object store, which is mapped while this program is connected to Ray."""
        self.largest = 0
        """Bytes of the largest batch so far."""

    @property
    def held(self) -> int:
        """Bytes of batches that are there."""
        return sum(batch.size for batch in list(self._batches))

    def has_room(self, in_flight: int, before_known: int = 1) -> bool:
        """True if one more batch may be made while so many are, or are to be.

        Args:
            in_flight: how many.
            before_known: how many may be before the size of a batch is known.
        """
        if not self.largest:
            return in_flight < before_known
        return self.held + (in_flight + 1) * self.largest <= self.budget

    def open(self, found: Bytes | None) -> Reader:
        """Return what hands out the arrays of a batch that came through the store."""
        self.largest = max(self.largest, 1 if found is None else found.nbytes)
        if found is None or found.nbytes < LARGE_BYTES:  # Ray does not even put small ones into its store
            return Copies(np.empty(1, np.uint8) if found is None or not found.nbytes else found)
        memory = writable(found, self._areas)
        if memory is None or self.held > self.budget:  # the program keeps so much that the store is full
            return Copies(found)
        batch = _Batch(memory, self._batches.discard)
        batch.size = found.nbytes
        self._batches.add(batch)
        return SegmentReader(memory, _MOST_HELD)


class _Batch(weakref.ref[Bytes]):
    """The memory of a batch, which others hold. Like no other: arrays cannot be compared, nor what refers to them."""

    __slots__ = ("size",)
    size: int
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class _Writable:
    """Memory of an array that cannot be written, as NumPy takes it: every array over it keeps that array alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "data": (address, False)}


Area = tuple[int, int]
"""First address and end of memory that may be written."""


def writable(array: Bytes, known: list[Area] | None = None) -> Bytes | None:
    """Return an array over the same memory that can be written; None if the system forbids that.

    Args:
        array: one that cannot.
        known: shared memory that was found to be writable, and stays where it is. More is added here.
    """
    if array.flags.writeable or not array.nbytes:
        return array
    first = array.__array_interface__["data"][0]
    end = first + array.nbytes
    if not any(area[0] <= first and end <= area[1] for area in known or ()):
        found = next(((area, kind) for area, kind in _mapped() if area[0] <= first and end <= area[1]), None)
        if found is None or "w" not in found[1]:
            return None
        if known is not None and "s" in found[1]:
            known.append(found[0])
    return np.asarray(_Writable(array))


def _mapped() -> Iterator[tuple[Area, str]]:
    """Yield the memory of this process, and what may be done with it; nothing where the system does not tell.

    Pieces of one file, or of none, that follow one another are one: a part of the heap may have huge pages, for one.
    """
    try:
        with open("/proc/self/maps") as file:
            lines = file.readlines()
    except OSError:  # not Linux
        return
    start, reach, before = 0, 0, ["", ""]
    for line in lines:
        span, kind, _, *origin = line.split(None, 5)[:5]
        first, end = (int(address, 16) for address in span.split("-"))
        if first != reach or [kind, *origin] != before:
            yield (start, reach), before[0]
            start, before = first, [kind, *origin]
        reach = end
    yield (start, reach), before[0]


class SpecReader(Views):
    """The arrays of a dataset in the object store: NumPy's cannot be written, as Ray has it; torch's can.

    All workers of a node see what one of them writes. torch knows no tensors that cannot be written.
    """

    __slots__ = ()

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        view = self._view[start : start + size]
        view.flags.writeable = False
        return view, 0
