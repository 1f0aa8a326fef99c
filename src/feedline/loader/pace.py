"""How long tasks take."""

from __future__ import annotations

from collections import deque

_UNKNOWN_S = 0.1
"""Taken for the time of a task before any has been answered. A guess, not measured."""


class Pace:
    """How long the last tasks took."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=32)
        self._answers = 0
        self._typical_s: float | None = None

    def note(self, busy_ns: int) -> None:
        """Note how long a worker was busy with a task."""
        self._recent.append(busy_ns)
        self._answers += 1

    def typical_s(self) -> float:
        """The median time of recent tasks."""
        if self._answers & 15 == 1 or self._typical_s is None:  # sorting for every batch would be felt by small ones
            recent = sorted(self._recent)
            self._typical_s = recent[len(recent) // 2] / 1e9 if recent else None
        return _UNKNOWN_S if self._typical_s is None else self._typical_s
