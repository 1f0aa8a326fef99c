"""How much is in flight: the window, when it is exceeded, and how long tasks take.

The window is `depth` batches per worker, as in torch. It is exceeded only where nobody can see which batches a worker
has made: workers that end with the epoch, `seed=`, `in_order=False`, or a dataset of plain arrays. One case is that the
training loop waits for a late batch while a worker is idle. Then workers start on batches beyond the window, within the
memory budget, so that one slow sample does not idle the others: up to `RUN_AHEAD` windows, as many as a window of short
tasks (below) has anyway. (With a fixed window one slow sample in a hundred halves the rate, as the benchmark
w6_stragglers shows.) Each worker runs ahead in its own share; work moves between workers only where any of them may
make a batch (`Machine`).

In the other case the user set no depth: the window is up to `DEEP` times as large while batches come in messages and
take less than `_SHORT_S` to make. A window of four such batches is used up before the next worker wakes, so every
process sleeps and is woken once per batch, which costs more than the batch. Such a window is refilled when a quarter of
it is used up. Handling many batches in a row is cheaper per batch than handling one at a time with other code in
between; but a worker that is ahead of the others, because they share cores, must not run out of work before the refill.
Only orders known in advance are read this far ahead: a user's own sampler may depend on what the training loop has done
meanwhile, and the training loop may also draw from a generator that was given to torch's sampler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

RUN_AHEAD = 16
"""How many windows may be in flight while a batch is late. A guess that was enough: with it and `seed=` the benchmark
w6_stragglers (1 % of samples 200 times slower, 4 workers) comes close to ideal. Other values were not measured.
"""

DEEP = 16
_SHORT_S = 1e-3
"""With 2 workers on 2 cores and batches of 3 KB made in 0.3 ms, as in the benchmark w1_tiny, 30 batches per worker,
refilled by a quarter, give 4 % more batches per second than 16 refilled by half. Deeper windows, and smaller refills,
gave no more. The time limit is a guess.
"""

_UNKNOWN_S = 0.1
"""Assumed duration of a task before any has been answered. A guess, not measured."""


@dataclass(frozen=True)
class Limits:
    """How much may be in flight, and how long it may take."""

    window: int
    """Maximum batches in flight."""
    depth: int
    """Maximum tasks per worker at a time."""
    timeout_s: float = 0.0
    """The longest wait for a batch; 0 for no limit."""
    kills_stuck: bool = False
    """True to replace a worker that takes longer than that, as if it had died."""
    deepens: bool = False
    """True if more may be in flight while batches are small and quick to make."""
    moves: bool = True
    """True if any worker may make any batch: with a seed, and on threads, which share one dataset."""
    runs_ahead: bool = True
    """True if more may be in flight while a batch is late."""
    takes_back: bool = False
    """True to take back the tasks of an epoch that is left, if they have not begun."""
    waits_for_slots: bool = True
    """True if a task that fits in the window waits until a slot is free; False to make its batch in other memory."""


class Pace:
    """How long the last tasks took."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=32)
        self._answers = 0
        self._busy_ns = 0
        self._typical_s: float | None = None

    def note(self, busy_ns: int) -> None:
        """Record how long a worker was busy with a task."""
        self._recent.append(busy_ns)
        self._answers += 1
        self._busy_ns += busy_ns

    def work(self) -> tuple[int, int]:
        """Return how many tasks were recorded, and their total time in nanoseconds."""
        return self._answers, self._busy_ns

    def typical_s(self) -> float:
        """The median time of recent tasks."""
        if self._answers & 15 == 1 or self._typical_s is None:  # sorting per batch would slow down small ones
            recent = sorted(self._recent)
            self._typical_s = recent[len(recent) // 2] / 1e9 if recent else None
        return _UNKNOWN_S if self._typical_s is None else self._typical_s

    def grace_s(self) -> float:
        """Return how long a worker may take for a task before it counts as late."""
        return 2.0 * self.typical_s() + 0.005


def window_size(limits: Limits, typical_s: float, fit_messages: int) -> int:
    """Return how many batches may be in flight.

    Args:
        limits: the configured limits.
        typical_s: how long a batch takes.
        fit_messages: how many batches of one worker can wait for the training loop in messages.

    Example:
        >>> window_size(Limits(4, 2, deepens=True), typical_s=0.0002, fit_messages=24)
        48
        >>> window_size(Limits(4, 2, deepens=True), typical_s=0.1, fit_messages=24)
        4
    """
    is_brisk = limits.deepens and typical_s < _SHORT_S
    return limits.window * (max(1, min(DEEP, fit_messages // limits.depth)) if is_brisk else 1)
