"""How many workers there are to be: told how the training loop and the workers spent their time, it answers.

It has no clock and touches no worker. Whoever drives it measures a period with a fixed number of workers, tells it, and
has as many workers as it says from then on. It looks for the fewest workers with which the training loop does not wait:

- The loop waits and the workers are busy: more of them, as many as the loop would need, at most twice as many at once.
  What that gains is compared with the rate before. What did not help in two periods is taken back, and not tried again.
- The loop does not wait, and fewer workers would have done the work: fewer. If the loop waits then, they come back, and
  so few are not tried again.

So between two changes of the load each number is left at most once in each direction, and it settles. From then on it
takes several periods in a row to move it: one that is slow says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.types.shown import counted, percent

_WAITS = 0.05
_HARDLY_WAITS = 0.02
"""Shares of the time that the training loop waits: above the first it wants more, below the second fewer may do."""

_BUSY = 0.6
"""Share of their time that workers are busy below which more of them would not help. A guess."""

_LEAST_PART = 0.2
"""Which part of what was hoped for more workers must gain to go on adding. A guess."""

_SPARE = 1.25
"""How much more work than on average the workers must be able to do: batches do not take equally long. A guess."""

_SETTLED_AFTER = 3
"""Periods without a change after which the number counts as found."""

_OTHER_LOAD = 1.5
"""By which factor a batch, or the training loop's work on it, takes longer or shorter if the load is another."""

_OTHER_PERIODS = 3
"""Periods in a row after which it counts as another. One in eight that is an exception is none of that."""

MOST_DEPTH = 8
"""Batches that each worker may come to be ahead."""


@dataclass(frozen=True)
class Measurement:
    """How some batches were made and consumed, with a fixed number of workers."""

    batches: int
    seconds: float
    """From the first of them to the last, the training loop's work on them included."""
    wait_s: float
    """How much of it the training loop waited."""
    busy_s: float
    """How long a worker took for a batch, on average."""
    cpu_share: float = 1.0
    """How much of that it computed; the rest it slept, for a disk or a network."""
    most: int = 1 << 30
    """Workers for which there is memory."""

    @property
    def stall(self) -> float:
        """The share of the time that the training loop waited."""
        return self.wait_s / self.seconds

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds

    @property
    def body_s(self) -> float:
        """How long the training loop worked on a batch."""
        return (self.seconds - self.wait_s) / self.batches

    def is_like(self, other: Measurement) -> bool:
        """True if batches, and the training loop's work on them, take about as long as in another period."""
        least_s = 0.1 * min(self.busy_s, other.busy_s)  # what is less hardly counts, and varies a lot
        pairs = ((self.busy_s, other.busy_s), (max(self.body_s, least_s), max(other.body_s, least_s)))
        return all(1 / _OTHER_LOAD < (one + 1e-9) / (two + 1e-9) < _OTHER_LOAD for one, two in pairs)


class Controller:
    """Decides how many workers there are to be, and how many batches each may be ahead.

    Args:
        count: how many workers there are.
        most: how many there may come to be.
        cores: how many can compute at the same time.
        least: how few there may come to be.
        depth: how many batches each worker may be ahead.
        tunes_depth: True if that may change.

    Example:
        >>> controller = Controller(2, most=16, cores=8)
        >>> controller.decide(Measurement(batches=20, seconds=4.0, wait_s=3.0, busy_s=0.4))
        True
        >>> controller.count, controller.log
        (4, ['2 -> 4 workers: training waited 75 % of the time, and the workers were busy 100 % of theirs.'])
    """

    def __init__(
        self, count: int, *, most: int, cores: float, least: int = 1, depth: int = 2, tunes_depth: bool = False
    ) -> None:
        self.count = count
        self.depth = depth
        self.log: list[str] = []
        """A line for every decision."""
        self._least, self._most = least, most
        self._cores = cores
        self._tunes_depth = tunes_depth
        self._forget()

    def _forget(self) -> None:
        self._floor, self._ceiling = self._least, self._most
        """Fewer are too few, more do not help."""
        self._before: tuple[int, float] | None = None
        """How many there were before some were added, and the rate then."""
        self._is_doubted = False
        """True if those that were added did not help in one period, which may be chance."""
        self._left: int | None = None
        """How many there were before some were retired."""
        self._found: Measurement | None = None
        """In which the number was found; None as long as it is not."""
        self._kept = self._waited = self._idled = self._unlike = 0
        """Periods in a row: without a change; in which the loop waited; in which fewer would have done; in which the
        load was another than when the number was found."""

    @property
    def is_settled(self) -> bool:
        """True if the number was found, for this load."""
        return self._found is not None

    def decide(self, seen: Measurement) -> bool:
        """Take note of a period; returns True if there are to be other workers, or another depth, from now on."""
        self._note_load(seen)
        self._waited = self._waited + 1 if seen.stall > _WAITS else 0
        busy = min(1.0, seen.rate * seen.busy_s / self.count)
        needed = max(self._floor, math.ceil(busy * self.count * _SPARE))
        self._idled = self._idled + 1 if seen.stall < _HARDLY_WAITS and needed < self.count else 0
        before, count, depth = self._before, self.count, self.depth
        self._before, is_doubted, self._is_doubted = None, self._is_doubted, False
        if before is not None and self._has_failed(seen, *before):
            if is_doubted:
                self._ceiling = before[0]
                reason = f"{count} made {seen.rate:.3g} batches per second, {before[0]} made {before[1]:.3g}"
                self._set(before[0], reason)
            else:
                self._before, self._is_doubted = before, True
        elif self._waited >= (_OTHER_PERIODS if self.is_settled else 1):
            self._add(seen, busy)
        elif self._idled >= (_OTHER_PERIODS if self.is_settled else 2):
            self._left = self.count
            self._set(needed, f"training hardly waited, and the workers were busy {percent(busy)} of their time")
        has_changed = (self.count, self.depth) != (count, depth)
        self._kept = 0 if has_changed else self._kept + 1
        if has_changed:
            self._waited = self._idled = 0
            self._found = None
        elif self._kept == _SETTLED_AFTER and not self.is_settled:
            self._settle(seen)
        return has_changed

    def is_refused(self, count: int) -> None:
        """There are no more than so many workers: others could not be started."""
        if count < self.count:
            self._ceiling = count
            self._before = None
            self._set(count, "the system refused to start more")

    def _note_load(self, seen: Measurement) -> None:
        self._unlike = 0 if self._found is None or seen.is_like(self._found) else self._unlike + 1
        if self._unlike == _OTHER_PERIODS:
            self.log.append(
                f"{counted(self.count, 'worker')}: the load has changed; a batch takes {seen.busy_s * 1e3:.3g} ms to "
                f"make, and training works {seen.body_s * 1e3:.3g} ms on it."
            )
            self._forget()

    def _has_failed(self, seen: Measurement, count: int, rate: float) -> bool:
        """True if workers that were added did not help; no more are added if they helped little."""
        gain, hoped = seen.rate / rate - 1, self.count / count - 1
        has_failed = 1 + gain < LEAST_GAIN and seen.stall > _WAITS
        if not has_failed and gain < hoped * _LEAST_PART:
            self._ceiling = self.count
        return has_failed

    def _add(self, seen: Measurement, busy: float) -> None:
        waited = f"training waited {percent(seen.stall)} of the time"
        if self._left is not None:  # they were too few
            self._floor, left, self._left = min(self._left, self.count + 1), self._left, None
            self._set(left, f"{waited}; fewer than {left} are too few")
            return
        most = max(self._least, min(self._ceiling, self._by_cores(seen), seen.most))
        if busy < _BUSY:
            if self._tunes_depth and self.depth < MOST_DEPTH:
                self.depth *= 2
                reason = f"{waited}, and the workers were busy {percent(busy)} of theirs"
                self.log.append(f"{counted(self.count, 'worker')}, each {self.depth} batches ahead: {reason}.")
            return
        if most <= self.count:
            if most <= self.count // 2:  # less may be chance
                self._set(most, f"{waited}, and no more than {most} can compute at a time, or have the memory")
            return
        wanted = math.ceil(self.count * seen.seconds / max(seen.seconds - seen.wait_s, seen.seconds / 2) * 1.1)
        self._before = self.count, seen.rate
        self._floor = self.count  # which did not do
        self._set(
            min(most, max(self.count + 1, min(wanted, 2 * self.count))),
            f"{waited}, and the workers were busy {percent(busy)} of theirs",
        )

    def _settle(self, seen: Measurement) -> None:
        self._found = seen
        self._left = None
        why = "training hardly waits"
        if seen.stall > _WAITS:
            why = f"training waits {percent(seen.stall)} of the time, and "
            if self.count >= self._ceiling:
                why += "more workers do not make it faster"
            elif self.count >= self._by_cores(seen):
                why += "1 core computes" if self._cores == 1 else f"{self._cores:g} cores compute"
                why += " all the time"
            elif self.count >= seen.most:
                why += "there is no memory for more workers"
            else:
                why += "the workers wait, too: for the training process to take batches over, or for their turn"
        self.log.append(f"{counted(self.count, 'worker')}, settled: {why}.")

    def _by_cores(self, seen: Measurement) -> int:
        """Return how many workers keep the cores busy."""
        return Load(seen.busy_s, seen.body_s, seen.cpu_share * seen.busy_s, self._cores).most

    def _set(self, count: int, reason: str) -> None:
        if count != self.count:
            self.log.append(f"{self.count} -> {counted(count, 'worker')}: {reason}.")
            self.count = count
