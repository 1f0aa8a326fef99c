"""How much memory recent batches have needed."""

from __future__ import annotations

_SPAN_WINDOWS = 2
_SHORTEST_SPAN = 16

_IN_THE_LOOP = 2
"""Batches that the training loop holds at a time: the current one, and the previous one until it is replaced."""


class Usage:
    """How much memory batches have needed recently, and so how much is worth keeping warm.

    The largest batch, and the most batches in flight, are remembered for two spans of deliveries, each of two windows.
    So after one large batch there is memory for more of them, until none has come for a while.

    Args:
        window: how many batches are normally in flight.
    """

    __slots__ = ("_before", "_count", "_now", "_span", "_window", "expected_bytes")

    def __init__(self, window: int) -> None:
        self._window = window
        self._span = max(_SHORTEST_SPAN, _SPAN_WINDOWS * window)
        self._count = 0
        self._now = [0, 0]
        """In this span: bytes of the largest batch, and the most batches in flight."""
        self._before = [0, 0]
        self.expected_bytes = 0
        """The largest expected size of the next batch; 0 before the first one."""

    @property
    def window_bytes(self) -> int:
        """Memory of the batches that are normally in flight."""
        return self._window * self.expected_bytes

    def note(self, size: int) -> None:
        """Record the size of a batch that was made."""
        if size > self._now[0]:
            self._now[0] = size
            self.expected_bytes = max(size, self._before[0])

    def begin(self, in_flight: int) -> None:
        """Record the number of batches in flight, including one that is about to be made."""
        if in_flight > self._now[1]:
            self._now[1] = in_flight

    def end(self) -> None:
        """Count a delivered batch."""
        self._count += 1
        if self._count >= self._span:
            self._count = 0
            self._before, self._now = self._now, [0, 0]
            self.expected_bytes = self._before[0]

    def spare_bytes(self, in_flight: int) -> int:
        """Return how much memory that is unused now will probably be used soon."""
        usual = max(self._window, self._now[1], self._before[1]) + _IN_THE_LOOP
        return max(0, usual - in_flight) * self.expected_bytes
