"""Ray's object store: how much of it a loader's batches take, and the dataset that lies there.

A batch is copied out of the store when it is delivered: Ray's arrays are read-only, because several readers may share
them, and training loops change batches in place. An object stays in the store while an array over it lives.
"""

from __future__ import annotations

import weakref

import numpy as np

from feedline.memory.codec import Bytes, Reader, Views


class Store:
    """The memory that the batches of one loader take in the object store.

    Args:
        budget: bytes that they may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._batches: set[_Batch] = set()
        """The batches in the store. One disappears when it was delivered, on any thread."""
        self.largest = 0
        """Bytes of the largest batch so far."""

    @property
    def held(self) -> int:
        """Bytes of the batches in the store."""
        return sum(batch.size for batch in list(self._batches))

    def capacity(self, before_known: int) -> int:
        """Return how many batches may be in flight; `before_known` until the size of a batch is known."""
        return (self.budget - self.held) // self.largest if self.largest else before_known

    def open(self, found: Bytes | None) -> Reader:
        """Return a reader that copies the arrays of a batch out of the store."""
        if found is None or not found.nbytes:
            self.largest = max(self.largest, 1)
            return Reader(np.empty(1, np.uint8))
        self.largest = max(self.largest, found.nbytes)
        batch = _Batch(found, self._batches.discard)
        batch.size = found.nbytes
        self._batches.add(batch)
        return Reader(found)


class _Batch(weakref.ref[Bytes]):
    """A reference to a batch's memory. Compared by identity: arrays, and references to them, cannot be compared."""

    __slots__ = ("size",)
    size: int
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class SpecReader(Views):
    """The arrays of a dataset in the object store: read-only for NumPy, as Ray requires; writable for torch.

    torch has no read-only tensors. Every process maps the store for reading and writing, and all workers of a node see
    what one of them writes.
    """

    __slots__ = ()

    def __init__(self, view: Bytes) -> None:
        super().__init__(np.asarray(_Writable(view)) if view.nbytes else view)

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        view = self._view[start : start + size]
        view.flags.writeable = False
        return view, 0


class _Writable:
    """The memory of a read-only array, as a writable buffer for NumPy: every array over it keeps that array alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "data": (address, False)}
