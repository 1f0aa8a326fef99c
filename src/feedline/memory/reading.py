"""The memory that a batch is read from: which arrays are views, and which get their own memory.

A program that keeps a label must not keep the images stored beside it. So no array of a batch keeps another alive:

- a small array is copied; it never holds a slot;
- a large array is a view with its own lease, and the memory beside it can go back to the system;
- arrays that overlap, such as a tensor and a view of it, still share one piece of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LARGE_BYTES = 64 << 10
"""Arrays of at least this size are not copied when their batch is delivered. A copy of this size takes about as long as
the lease that it saves (4 us), and a page lost at each end is small beside a larger array."""

SMALL_BYTES = 16 << 10
"""A batch up to this size can be sent inside its message: all of its arrays are copied anyway, and a slot would have to
be found, read and given back. The size is a guess; half of it and twice as much were not tried."""


class Reader:
    """Hands out the memory of the arrays of one batch.

    Args:
        view: the memory of the batch.
        lease: returns a part (start, size) of this memory that may be kept; called for large parts. None to copy
            everything, because the memory is reused at once.
    """

    __slots__ = ("_joined", "_lease", "_view")

    def __init__(self, view: Bytes, lease: Callable[[int, int], Bytes] | None = None) -> None:
        self._view = view
        self._lease = lease
        self._joined: dict[tuple[int, int], Bytes | None] | None = None

    @property
    def copies(self) -> bool:
        """True if all arrays are copies."""
        return self._lease is None

    def join(self, spans: Iterable[tuple[int, int]]) -> None:
        """Note ranges (start, size) that several arrays share."""
        self._joined = dict.fromkeys(spans) or None

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        """Return memory that contains the `size` bytes of the batch from `start` on, and their offset in it.

        An array built on this memory keeps it alive, and nothing else of the batch.
        """
        if self._joined:
            for span, known in self._joined.items():
                if span[0] <= start and start + size <= span[0] + span[1]:
                    part = self._joined[span] = self._part(*span) if known is None else known
                    return part, start - span[0]
        return self._part(start, size), 0

    # Any: the type of the elements.
    def array(self, start: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """Return an array of the batch that begins at `start`."""
        array: NDArray[np.generic] = np.ndarray(shape, dtype, self._view, start)
        if self._joined is None and (self._lease is None or array.nbytes < LARGE_BYTES):
            return array.copy()
        return np.ndarray(shape, dtype, *self.take(start, array.nbytes))

    def peek(self, start: int, size: int) -> memoryview:
        """Return bytes that the caller reads at once and does not keep."""
        return self._view[start : start + size].data

    def _part(self, start: int, size: int) -> Bytes:
        """Return the memory of one array, or of several that overlap."""
        if self._lease is None or size < LARGE_BYTES:
            return self._view[start : start + size].copy()
        return self._lease(start, size)


class Views(Reader):
    """Returns everything as a view: for memory that is not reused."""

    __slots__ = ()

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        return self._view, start

    def array(self, start: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        return np.ndarray(shape, dtype, self._view, start)


def segment_reader(view: Bytes, most_held: float = 1.25) -> Reader:
    """Read memory that can only be freed as a whole: an array that makes up nearly all of it is a view.

    Args:
        view: the memory of the batch.
        most_held: how many times its own size a view may keep alive.
    """

    def lease(start: int, size: int) -> Bytes:
        part = view[start : start + size]
        return part if most_held * size >= view.nbytes else part.copy()

    return Reader(view, lease)


def overlapping(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping ranges (start, size); returns those that were merged from several."""
    joined: list[tuple[int, int]] = []
    first, end, several = 0, 0, False
    for start, size in sorted(spans):
        if start < end:
            end, several = max(end, start + size), True
            continue
        if several:
            joined.append((first, end - first))
        first, end, several = start, start + size, False
    if several:
        joined.append((first, end - first))
    return joined
