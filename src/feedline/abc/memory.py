"""Where the current batch is written to or read from, and where its deferred fields are finished.

A worker that has a slot announces it here for the duration of one task. Collate functions allocate from it and fill it
directly, so the batch is not copied again. Outside a task there is no current memory, allocations work as usual, and
nothing is deferred. The announcement belongs to one thread.

The memory that a batch is read from is announced in the same way, for functions that a header names.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Placement(enum.Enum):
    """Where deferred fields are finished; see `feedline.abc.deferred`."""

    DATASET = "dataset"
    """In the dataset: nothing is deferred."""
    COLLATE = "collate"
    """In the collate function."""
    DEVICE = "device"
    """On the device, from pixels: one byte per value."""
    DECODE = "decode"
    """On the device, which also decodes the files."""


class Memory(Protocol):
    """Memory for one batch."""

    crosses: bool
    """True if the batch will be sent to another process."""
    has_space: bool
    """False if there is never any space here."""

    def allocate(self, size: int) -> tuple[Any, int] | None:
        """Reserve `size` bytes.

        Returns:
            An object with the buffer protocol and the byte offset inside it, or None when there is no space left.
            Whatever is built on the buffer must keep the object alive.
        """


class Writer(Memory, Protocol):
    """Memory that a worker writes a finished batch into."""

    view: Any
    """The memory itself: an array of bytes."""
    address: int
    """Its start address."""

    def copy(self, address: int, size: int, *, lasting: bool = True) -> int:
        """Copy memory here, unless it is here already; returns its offset, raises if there is no space.

        Pass `lasting` if the memory stays unchanged until the batch is written: its views become views of the copy.
        """

    def offset_of(self, address: int, size: int) -> int | None:
        """Return the offset of memory that was allocated or copied here, None for other memory."""


class Reader(Protocol):
    """Memory that a batch is read from."""

    def take(self, start: int, size: int) -> tuple[object, int]:
        """Return an object with the buffer protocol that holds a part of the batch, and the offset of the part in it.

        Whatever is built on the buffer must keep the object alive. The object keeps no other part of the batch alive.
        """

    def array(self, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a part of the batch as an array."""


class _OnThisThread(threading.local):
    """What a thread has announced. Attributes rather than functions: these are needed for every batch."""

    memory: Memory | None = None
    """The memory of the task that runs, if there is one."""
    placement = Placement.DATASET
    """Where fields that are made now are finished."""
    being_read: Reader | None = None
    """The memory of the batch that is read, if one is."""


on_this_thread = _OnThisThread()


def empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[Any]:
    """Create an uninitialised array: in the memory of the current task if there is space, else as usual."""
    memory = on_this_thread.memory
    if memory is not None and not dtype.hasobject:
        size = math.prod(shape) * dtype.itemsize
        place = memory.allocate(size) if size else None
        if place is not None:
            return np.ndarray(shape, dtype, place[0], place[1])
    return np.empty(shape, dtype)


def is_row_major(shape: Sequence[int], strides: Sequence[int], step: int = 1) -> bool:
    """True if these are the strides of a new array, also in dimensions of size 1.

    `is_contiguous` ignores those, but torch reads the memory format from them.

    Args:
        shape: of the array.
        strides: of the array.
        step: the stride of the last dimension: 1 in a tensor, `itemsize` in an array.
    """
    for dimension in range(len(shape) - 1, -1, -1):
        if strides[dimension] != step:
            return False
        step *= shape[dimension] or 1
    return True
