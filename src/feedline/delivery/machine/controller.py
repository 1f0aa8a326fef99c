"""Decide how many workers to use, given how the training loop and the workers spent their time.

The controller has no clock and touches no worker. Its caller measures a period with a fixed number of workers, passes
in the measurement, and adopts the number that the controller decides. The controller looks for the fewest workers with
which the training loop does not wait:

- The loop waits and the workers are busy: add workers, as many as the loop would need, at most doubling the number.
  Compare the rate with the one before. An addition that did not help in two periods is undone, and not tried again.
- The loop does not wait, and fewer workers could have done the work: retire some. If the loop waits then, bring them
  back, and do not try that few again.

So between two changes of the load each number is left at most once in each direction, and the search settles. From then
on it takes several periods in a row to change the number: one slow period proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.system.shown import counted, percent

_WAITS = 0.05
_HARDLY_WAITS = 0.02
"""Shares of the time that the training loop waits. Above the first it needs more workers; below the second, fewer may
be enough.
"""

_BUSY = 0.6
"""Share of time that workers are busy below which more of them would not help. A guess."""

_LEAST_PART = 0.2
"""Fraction of the expected gain that an addition must reach for more to be added. A guess."""

_SPARE = 1.25
"""Spare capacity of the workers relative to the average work: batches vary in duration. A guess."""

_OTHER_LOAD = 1.5
"""Factor by which the time for a batch, or the training loop's work on it, must change to count as another load."""

_IN_A_ROW = 3
"""Periods without a change after which the number counts as found, and periods that show another load from then on. An
exceptional period in every eight does not count.
"""

MOST_DEPTH = 8
"""Maximum number of batches that each worker may be ahead."""


@dataclass(frozen=True)
class Measurement:
    """How batches were made and consumed in a period with a fixed number of workers."""

    batches: int
    seconds: float
    """From the first batch to the last, including the training loop's work on them."""
    wait_s: float
    """How long the training loop waited."""
    busy_s: float
    """How long a worker took for a batch, on average."""
    cpu_share: float = 1.0
    """Share of that time spent computing; the rest is waiting for a disk or a network."""
    room: Callable[[], int] = lambda: 1 << 30
    """Returns how many workers fit in memory; called only if more would help, as looking takes time."""

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
        least_s = 0.1 * min(self.busy_s, other.busy_s)  # smaller values hardly count, and vary a lot
        pairs = ((self.busy_s, other.busy_s), (max(self.body_s, least_s), max(other.body_s, least_s)))
        return all(1 / _OTHER_LOAD < (one + 1e-9) / (two + 1e-9) < _OTHER_LOAD for one, two in pairs)


class Controller:
    """Decide how many workers to use, and how many batches each may be ahead.

    Args:
        count: current number of workers.
        most: maximum number of workers.
        cores: how many workers can compute at the same time.
        least: minimum number of workers.
        depth: how many batches each worker may be ahead.
        tunes_depth: True if the depth may change.

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
        """One line per decision."""
        self.least, self.most = least, most
        self.cores = cores
        self.tunes_depth = tunes_depth
        self.begin()

    def begin(self) -> None:
        """Begin the search, or begin it again for another load."""
        self._floor, self._ceiling = self.least, self.most
        """Fewer than the first are too few; more than the second do not help."""
        self._before: tuple[int, float] | None = None
        """The number of workers before some were added, and the rate then."""
        self._left: int | None = None
        """The number of workers before some were retired."""
        self._found: Measurement | None = None
        """The period in which the number was found; None until then."""
        self._in_a_row: dict[str, int] = {}
        """How many of the last periods were of a kind, such as "waited"."""

    @property
    def is_settled(self) -> bool:
        """True if the number was found for this load."""
        return self._found is not None

    def say(self, line: str) -> None:
        """Add a line to the log."""
        self.log.append(line)

    def decide(self, seen: Measurement) -> bool:
        """Process a period; return True if the number of workers or the depth changes from now on."""
        is_other = self._found is not None and not seen.is_like(self._found)
        if self._periods("of another load", is_other) == _IN_A_ROW:
            self.say(
                f"{counted(self.count, 'worker')}: the load has changed; a batch takes {seen.busy_s * 1e3:.3g} ms to "
                f"make, and training works {seen.body_s * 1e3:.3g} ms on it."
            )
            self.begin()
        busy = min(1.0, seen.rate * seen.busy_s / self.count)
        needed = max(self._floor, math.ceil(busy * self.count * _SPARE))
        waited = self._periods("waited", seen.stall > _WAITS)
        idled = self._periods("idled", seen.stall < _HARDLY_WAITS and needed < self.count)
        failed = self._periods("without a gain", self._before is not None and self._has_failed(seen, *self._before))
        before = self.count, self.depth
        if failed == 2 and self._before is not None:
            self._ceiling, rate = self._before
            self._set(
                self._ceiling, f"{self.count} made {seen.rate:.3g} batches per second, {self._ceiling} made {rate:.3g}"
            )
        elif not failed:
            self._before = None
            if waited >= (_IN_A_ROW if self._found else 1):
                self._add(seen, busy)
            elif idled >= (_IN_A_ROW if self._found else 2):
                self._left = self.count
                self._set(needed, f"training hardly waited, and the workers were busy {percent(busy)} of their time")
        has_changed = (self.count, self.depth) != before
        if has_changed:
            self._found = None
            self._in_a_row.clear()
        elif self._periods("unchanged", True) == _IN_A_ROW and self._found is None:
            self._settle(seen)
        return has_changed

    def _periods(self, kind: str, is_so: bool) -> int:
        """Count a period if it is of a kind; return how many of that kind came in a row."""
        self._in_a_row[kind] = self._in_a_row.get(kind, 0) + 1 if is_so else 0
        return self._in_a_row[kind]

    def is_refused(self, count: int) -> None:
        """Handle a failure to start workers: there are only `count`."""
        if count < self.count:
            self._ceiling = count
            self._before = None
            self._set(count, "the system refused to start more")

    def _has_failed(self, seen: Measurement, count: int, rate: float) -> bool:
        """True if added workers did not help; stop adding more if they helped little."""
        gain, hoped = seen.rate / rate - 1, self.count / count - 1
        has_failed = 1 + gain < LEAST_GAIN and seen.stall > _WAITS
        if not has_failed and gain < hoped * _LEAST_PART:
            self._ceiling = self.count
        return has_failed

    def _add(self, seen: Measurement, busy: float) -> None:
        waited = f"training waited {percent(seen.stall)} of the time"
        if self._left is not None:  # the retired workers were needed
            self._floor, left, self._left = min(self._left, self.count + 1), self._left, None
            self._set(left, f"{waited}; fewer than {left} are too few")
            return
        if busy < _BUSY:
            if self.tunes_depth and self.depth < MOST_DEPTH:
                self.depth *= 2
                reason = f"{waited}, and the workers were busy {percent(busy)} of theirs"
                self.say(f"{counted(self.count, 'worker')}, each {self.depth} batches ahead: {reason}.")
            return
        most = min(self._ceiling, self._by_cores(seen))
        most = max(self.least, min(most, seen.room()) if most > self.count else most)
        if most <= self.count:
            if most <= self.count // 2:  # a smaller difference may be chance
                self._set(most, f"{waited}, and no more than {most} can compute at a time or fit in memory")
            return
        wanted = math.ceil(self.count * seen.seconds / max(seen.seconds - seen.wait_s, seen.seconds / 2) * 1.1)
        self._before = self.count, seen.rate
        self._floor = self.count  # which was not enough
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
                why += "1 core computes" if self.cores == 1 else f"{self.cores:g} cores compute"
                why += " all the time"
            elif self.count >= seen.room():
                why += "there is no memory for more workers"
            else:
                why += "the workers wait too: for the training process to accept batches, or for their turn"
        self.say(f"{counted(self.count, 'worker')}, settled: {why}.")

    def _by_cores(self, seen: Measurement) -> int:
        """Return how many workers keep the cores busy."""
        return Load(seen.busy_s, seen.body_s, seen.cpu_share * seen.busy_s, self.cores).most

    def _set(self, count: int, reason: str) -> None:
        if count != self.count:
            self.say(f"{self.count} -> {counted(count, 'worker')}: {reason}.")
            self.count = count
