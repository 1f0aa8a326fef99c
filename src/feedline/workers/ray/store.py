"""Batches in Ray's object store, as the training process sees them: how much memory they take, and who may write.

Ray returns the contents of its store as read-only arrays, because several readers may share them. A batch has one
reader, and training loops change batches in place. Every process maps the store for reading and writing
(`/proc/self/maps` shows it), so a writable array over the same memory does no harm. If a version of Ray maps the store
read-only, batches are copied instead: writing there would crash the process.

An object stays in the store, and is not moved or spilled, while an array over it lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from feedline.memory.reading import LARGE_BYTES, Bytes, Copies, Reader, SegmentReader, Views

_MOST_HELD = 4.0
"""How many times its own size an array may keep occupied in the store: Ray frees only whole objects."""


class Store:
    """The memory that the batches of one loader take in the object store.

    Args:
        budget: bytes that they may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._batches: set[_Batch] = set()
        """The batches in the store. One disappears with the last array over its memory, on any thread."""
        self._areas: list[Area] = []
        """Memory of the object store, which stays mapped while this program is connected to Ray."""
        self.largest = 0
        """Bytes of the largest batch so far."""

    @property
    def held(self) -> int:
        """Bytes of the batches in the store."""
        return sum(batch.size for batch in list(self._batches))

    def has_space(self, in_flight: int, before_known: int = 1) -> bool:
        """True if one more batch may be made.

        Args:
            in_flight: number of batches that are being made or are pending.
            before_known: how many may be in flight before the size of a batch is known.
        """
        if not self.largest:
            return in_flight < before_known
        return self.held + (in_flight + 1) * self.largest <= self.budget

    def open(self, found: Bytes | None) -> Reader:
        """Return a reader for the arrays of a batch that came through the store."""
        self.largest = max(self.largest, 1 if found is None else found.nbytes)
        if found is None or found.nbytes < LARGE_BYTES:  # Ray does not even put small ones into its store
            return Copies(np.empty(1, np.uint8) if found is None or not found.nbytes else found)
        memory = writable(found, self._areas)
        if memory is None or self.held > self.budget:  # the program keeps so many batches that the budget is spent
            return Copies(found)
        batch = _Batch(memory, self._batches.discard)
        batch.size = found.nbytes
        self._batches.add(batch)
        return SegmentReader(memory, _MOST_HELD)


class _Batch(weakref.ref[Bytes]):
    """A reference to a batch's memory. Compared by identity: arrays, and references to them, cannot be compared."""

    __slots__ = ("size",)
    size: int
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class _Writable:
    """The memory of a read-only array, as a writable buffer for NumPy: every array over it keeps that array alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "data": (address, False)}


Area = tuple[int, int]
"""Start and end address of writable memory."""


def writable(array: Bytes, known: list[Area] | None = None) -> Bytes | None:
    """Return a writable array over the same memory; None if the system forbids writing.

    Args:
        array: an array, usually read-only.
        known: shared memory that was found to be writable and stays mapped. New areas are added to it.
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
    """Yield the memory areas of this process and their permissions; nothing if the system does not list them.

    Adjacent areas of one file, or of none, are joined: a part of the heap may have huge pages, for example.
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
    """The arrays of a dataset in the object store: read-only for NumPy, as Ray requires; writable for torch.

    All workers of a node see what one of them writes. torch has no read-only tensors.
    """

    __slots__ = ()

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        view = self._view[start : start + size]
        view.flags.writeable = False
        return view, 0
