"""`ShuffleBuffer`: samples of a stream in random order, with a state of two numbers."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

T = TypeVar("T")

Release = tuple[int, int]
"""The place at which a sample is released, and its number."""


class ShuffleBuffer(Generic[T]):
    """A shuffle buffer whose content depends only on its position.

    Sample i of a stream is delayed by a random number of places below `width`, which depends only on the key and i.
    Samples are released in the order of i + delay. So a sample moves by at most `width` places, and about half of
    `width` samples are held at any time. One pair of numbers records what was released: everything up to the last
    release. To rebuild a buffer, read again from its oldest sample, at most `width` back, and skip what was released.

    Args:
        key: determines the delays.
        width: the longest delay, plus one; 1 for no delay.
        first: the number of the first sample that will be added.
        last: the last release before the buffer was rebuilt: samples up to it are skipped.
    """

    def __init__(self, key: int, width: int, first: int = 0, last: Release = (-1, -1)) -> None:
        self._key = key
        self._width = width
        self.number = first
        """Number of the next sample to add."""
        self._passes = False
        """True once samples were passed by: all of them are released then."""
        self._last = last
        self._before = last, first
        self._heap: list[Release] = []
        self._held: dict[int, T] = {}
        """Samples by number, in the order in which they were added."""

    @property
    def last(self) -> Release:
        """The last release."""
        if self._passes:
            return self.number - 1, self.number - 1
        return self._last

    @property
    def taken(self) -> tuple[Release, int]:
        """The last release before the last sample was taken, and the number of that sample."""
        if self._passes:
            return (self.number - 2, self.number - 2), self.number - 1
        return self._before

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: T) -> None:
        """Add the next sample."""
        release = self.number + mix(self._key, self.number) % self._width, self.number
        self.number += 1
        if release > self._last:
            heapq.heappush(self._heap, release)
            self._held[release[1]] = item

    def is_ready(self, *, ended: bool) -> bool:
        """True if the next sample is known: no sample added later can precede it."""
        return bool(self._heap) and (ended or self._heap[0][0] <= self.number)

    def take(self, *, ended: bool) -> T:
        """Release the next sample; only call this if `is_ready`."""
        before, self._last = self._last, heapq.heappop(self._heap)
        self._before = before, self._last[1]
        return self._held.pop(self._last[1])

    def pass_by(self, count: int) -> None:
        """Count samples as added and released; only call this if the width is 1 and no sample is held."""
        self.number += count
        self._passes = True

    def came(self, first: int, end: int | None) -> NDArray[np.bool_]:
        """Return whether each sample from `first` to `end` was released; `end` defaults to the last release."""
        numbers = np.arange(first, self.last[0] + 1 if end is None else end)
        releases = numbers + (mix_array(self._key, numbers) % np.uint64(self._width)).astype(np.int64)
        came: NDArray[np.bool_] = (releases < self.last[0]) | ((releases == self.last[0]) & (numbers <= self.last[1]))
        return came

    def oldest(self) -> tuple[int, T] | None:
        """Return the number of the oldest held sample, and the sample; None if the buffer is empty."""
        return next(iter(self._held.items()), None)
