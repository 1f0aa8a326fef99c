"""How much memory batches have needed lately: what is worth keeping warm.

Sizes and numbers are remembered for two spans of deliveries, each of two windows. So one large batch is prepared for
while others like it may follow, and forgotten when none has come for a while.
"""

from __future__ import annotations

_SPAN_WINDOWS = 2
_SHORTEST_SPAN = 16

_IN_THE_LOOP = 2
"""Batches that the training loop has at a time: the one it works on, and the one before, until it is replaced."""


class Usage:
    """The largest batch, and the most batches in flight, of recent times.

    Args:
        window: how many batches are in flight in the usual course of things.
    """

    __slots__ = ("_before", "_count", "_now", "_span", "_window", "expected_bytes", "spans")

    def __init__(self, window: int) -> None:
        self._window = window
        self._span = max(_SHORTEST_SPAN, _SPAN_WINDOWS * window)
        self._count = 0
        self._now = [0, 0]
        """Bytes of the largest batch of this span; the most batches in flight."""
        self._before = [0, 0]
        self.spans = 0
        """How many spans are over."""
        self.expected_bytes = 0
        """How large the next batch may be; 0 if there was none yet."""

    @property
    def window_bytes(self) -> int:
        """What the batches in flight take, in the usual course of things."""
        return self._window * self.expected_bytes

    def note(self, size: int) -> None:
        """A batch of this size was made."""
        if size > self._now[0]:
            self._now[0] = size
            self.expected_bytes = max(size, self._before[0])

    def begin(self, in_flight: int) -> None:
        """A batch is about to be made, and with it so many are in flight."""
        if in_flight > self._now[1]:
            self._now[1] = in_flight

    def end(self) -> bool:
        """A batch was delivered. Returns True if another span begins with it."""
        self._count += 1
        if self._count < self._span:
            return False
        self._count = 0
        self.spans += 1
        self._before, self._now = self._now, [0, 0]
        self.expected_bytes = self._before[0]
        return True

    def spare_bytes(self, in_flight: int) -> int:
        """Return how much memory that nobody uses now will probably be used soon."""
        usual = max(self._window, self._now[1], self._before[1]) + _IN_THE_LOOP
        return max(0, usual - in_flight) * self.expected_bytes
