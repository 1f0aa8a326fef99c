"""A shuffle buffer whose content follows from where it is.

Sample i of a stream is held back for a random number of places below `width`, which follows from the key and i alone.
Samples come out in the order of i + delay. So a sample comes at most `width` places away from where it was, and about
half as many are held at any time. What was given out is told by one pair of numbers: everything up to the last one. A
buffer is rebuilt by reading again from the oldest sample in it, at most `width` back, leaving out what was given out.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

from feedline.randomness.keys import mix

T = TypeVar("T")

Release = tuple[int, int]
"""When a sample comes out, and its number."""


class _Held(Generic[T]):
    __slots__ = ("is_gone", "item", "release")

    def __init__(self, release: Release, item: T) -> None:
        self.release = release
        self.item: T | None = item
        self.is_gone = False

    def __lt__(self, other: _Held[T]) -> bool:
        return self.release < other.release


class ShuffleBuffer(Generic[T]):
    """Samples that are held back.

    Args:
        key: decides about delays.
        width: the longest delay, and one more; 1 for none.
        first: the number of the first sample that will be added.
        last: what was given out last before this was rebuilt: samples up to it are left out.

    Example:
        >>> buffer = ShuffleBuffer(key=7, width=4)
        >>> for letter in "abcdefgh":
        ...     buffer.add(letter)
        >>> first = [buffer.take(ended=False) for _ in range(4)]
        >>> len(buffer), sorted(first + [buffer.take(ended=True) for _ in range(4)])
        (4, ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'])
    """

    def __init__(self, key: int, width: int, first: int = 0, last: Release = (-1, -1)) -> None:
        self._key = key
        self._width = width
        self.number = first
        """Of the sample that is added next."""
        self.last = last
        self._heap: list[_Held[T]] = []
        self._line: deque[_Held[T]] = deque()
        """In the order in which they were added; those that are gone stay until they are first."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: T) -> None:
        """Add the next sample."""
        release = self.number + mix(self._key, self.number) % self._width, self.number
        self.number += 1
        if release > self.last:
            held = _Held(release, item)
            heapq.heappush(self._heap, held)
            self._line.append(held)

    def is_ready(self, *, ended: bool) -> bool:
        """True if it is known which sample comes next: none that is still to be added can come before it."""
        return bool(self._heap) and (ended or self._heap[0].release[0] <= self.number)

    def take(self, *, ended: bool) -> T:
        """Give out the next sample; `is_ready` must have said that it is known."""
        assert self.is_ready(ended=ended)
        held = heapq.heappop(self._heap)
        held.is_gone = True
        self.last = held.release
        item, held.item = held.item, None
        while self._line and self._line[0].is_gone:
            self._line.popleft()
        return item  # type: ignore[return-value]  # None only after it was given out

    def oldest(self) -> tuple[int, T] | None:
        """Return the number of the oldest sample that is held, and itself; None if there is none."""
        line = self._line
        return (line[0].release[1], line[0].item) if line else None  # type: ignore[return-value]
