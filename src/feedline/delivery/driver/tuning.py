"""The number of workers with `num_workers="auto"`: measures periods, and adds and retires workers.

`Tuning` decides, and lives as long as its loader, across epochs. `TunedDriver` measures periods, passes them to it, and
has the machine add and retire workers between two batches. It does not measure the time between two epochs, nor the
time after a change until every worker has answered once and the batches prefetched by then are used up.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from dataclasses import replace
from typing import TypeVar

from feedline.delivery.config import DEFAULT_DEPTH, Config
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.controller import MOST_DEPTH, Controller, Measurement
from feedline.delivery.machine.epoch import Epoch
from feedline.system.limits import memory_limit, physical_bytes, usable_cores
from feedline.system.process import own_bytes, scheduled_s
from feedline.system.ranks import local_rank_count

C = TypeVar("C", bound=Config)

logger = logging.getLogger("feedline")

START = 2
"""Initial number of workers: enough to see whether more would help, and few enough for any machine."""

_MOST = 64
"""Maximum number of workers of one loader, unless there are more cores. A guess; for longer waits, `asyncio` is better.
"""

_EVERY = 4
"""Number of batches after which to check whether a period is over."""

_LEAST_BATCHES = 8
_LEAST_S = 0.4
"""Minimum length of a period: long enough that the rates of two periods differ by only a few percent. Guesses."""


class Tuning(Controller):
    """The number of workers found for one loader, and the reasons: a controller that lives as long as the loader.

    Args:
        count: the number of workers; 0 if the training loop makes the batches itself.
        most: its maximum.
        least: its minimum.
        depth: batches per worker that are in flight.
        tunes_depth: True if the depth may change.
        engine: the engine that was chosen for the workers; None if the choice was not free.
        finds_workers: True if the number of workers is to be found (`num_workers="auto"`), not the depth alone.
    """

    def __init__(
        self,
        count: int,
        most: int,
        *,
        least: int = 1,
        depth: int = DEFAULT_DEPTH,
        tunes_depth: bool = False,
        engine: str | None = None,
        finds_workers: bool = False,
    ) -> None:
        cores = max(1.0, usable_cores() / local_rank_count())
        super().__init__(count, most=most, cores=cores, least=least, depth=depth, tunes_depth=tunes_depth)
        self.engine = engine
        self.finds_workers = finds_workers
        self.is_begun = False
        """True once the initial settings are determined."""
        self._start = count

    @classmethod
    def from_cores(cls, *, depth: int = DEFAULT_DEPTH, tunes_depth: bool = False) -> Tuning:
        """Return the initial values for this machine, whose cores are divided among its ranks."""
        most = max(START, max(_MOST, usable_cores()) // local_rank_count())
        return cls(START, most, depth=depth, tunes_depth=tunes_depth, finds_workers=True)

    def fix(self, count: int, line: str) -> None:
        """Fix the number of workers for good, and log the reason."""
        self.count = self.least = self.most = self._start = count
        self.tunes_depth = False
        self.say(line)

    def applied_to(self, config: C) -> C:
        """Return the config of a loader with this tuning. It does not change while the number of workers does."""
        return replace(
            config,
            worker_count=self._start,
            depth=DEFAULT_DEPTH if self.tunes_depth else self.depth,
            most_workers=self.most,
            most_depth=MOST_DEPTH if self.tunes_depth else 0,
            engine=self.engine or config.engine,
        )

    @property
    def is_under_way(self) -> bool:
        """True if the number of workers or the depth may still change."""
        return self.most > self.least or self.tunes_depth

    @property
    def is_settled(self) -> bool:
        """True if the number of workers was found, or follows from the kind of dataset."""
        return self.is_begun and (self.least == self.most or super().is_settled)

    @property
    def state(self) -> str | None:
        """The state of the search for the number of workers, in a word; None if the number was given."""
        if not self.finds_workers:
            return None
        return "settled" if self.is_settled else "searching"

    def copy(self) -> Tuning:
        """Return the initial values for another loader, which searches for itself."""
        twin = copy.copy(self)
        twin.count, twin.log = self._start, list(self.log)
        twin.begin()
        return twin

    def say(self, line: str) -> None:
        """Add a line to the log, and log it."""
        super().say(line)
        logger.info("%s", line)


class TunedDriver(Driver):
    """A driver whose number of workers changes."""

    tuning: Tuning
    """Receives the measurements and decides; set before the first epoch."""
    _asked = _due = _start = 0
    """Batches requested so far; the number of requests at which to check again, and at which the period began."""
    _is_warm = False
    """True if every worker has answered."""
    _waited_s = 0.0
    _since: tuple[float, float, int, int, float, float] | None = None
    """Values at the beginning of the period: the time, the time spent waiting, answered tasks, their time, CPU time,
    and time without a core; None between periods.
    """

    def begin_epoch(self, epoch: Epoch) -> None:
        self._pause()
        depth = self.tuning.depth
        self.machine.crew.is_elastic = self.tuning.least < self.tuning.most
        epoch.limits = replace(epoch.limits, window=len(self._flights.active) * depth, depth=depth)
        super().begin_epoch(epoch)

    def next(self) -> object:
        self._asked += 1
        if self._asked >= self._due:
            self._look()
        return super().next()

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        begun_s = time.monotonic()
        try:
            super()._collect(pause_s, worker)
        finally:
            self._waited_s += time.monotonic() - begun_s
        if len(self._flights.active) < self.tuning.count:  # one of them could not be started
            self.tuning.is_refused(len(self._flights.active))

    def _pause(self) -> None:
        """Measure nothing until every worker has answered, and the batches prefetched by then are used up."""
        self._since, self._is_warm = None, False
        self._due = self._asked + 1

    def _look(self) -> None:
        machine, tuning, pace = self.machine, self.tuning, self._flights.pace
        self._due = self._asked + _EVERY
        if not self._is_warm:
            self._is_warm = machine.crew.have_all_answered
            if self._is_warm:
                self._due = self._asked + 1 + tuning.count * tuning.depth
            return
        now_s = time.monotonic()
        if self._since is None:
            self._start, self._since = (
                self._asked,
                (now_s, self._waited_s, *pace.work(), *self._scheduled_s()),
            )
            return
        begun_s, waited_s, tasks, busy_ns, computed_before_s, queued_before_s = self._since
        batches, seconds = self._asked - self._start, now_s - begun_s
        answered, worked_ns = pace.work()
        if batches < max(_LEAST_BATCHES, 2 * tuning.count) or seconds < _LEAST_S or answered == tasks:
            return
        busy_s = (worked_ns - busy_ns) / 1e9
        computed_s, queued_s = self._scheduled_s()
        computed_s, own_s = computed_s - computed_before_s, busy_s - (queued_s - queued_before_s)
        share = computed_s / own_s if computed_s > 0 and own_s > 0 else 1.0  # if unknown: all of it
        period = Measurement(
            batches,
            seconds,
            min(self._waited_s - waited_s, seconds),
            busy_s / (answered - tasks),
            min(1.0, share),
            self._room,
        )
        self._pause()
        has_changed = tuning.decide(period)
        if has_changed:
            self._flights.now_s = now_s
            machine.crew.resize(tuning.count, tuning.depth)
            self._perform()
            tuning.is_refused(len(self._flights.active))

    def _scheduled_s(self) -> tuple[float, float]:
        """Return how long the workers have computed so far, and how long they were ready to run but had no core.

        For threads, the first is the CPU time of all threads except this one, and the second is unknown (0).
        """
        pids = self.engine.pids
        if not pids:
            return time.process_time() - time.thread_time(), 0.0
        computed_s, queued_s = zip(*map(scheduled_s, pids), strict=True)
        return sum(computed_s), sum(queued_s)

    def _room(self) -> int:
        """Return how many workers fit in memory, if additional ones may take half of the free memory."""
        pids = self.engine.pids
        sizes = [size for pid in pids if (size := own_bytes(pid))]
        worker_bytes = sum(sizes) / max(len(sizes), 1)
        free = physical_bytes()[1]
        if not worker_bytes or free is None:
            return 1 << 30
        free = min(free, memory_limit() - sum(sizes) - (own_bytes(os.getpid()) or 0))
        return len(pids) + max(0, int(free / 2 / local_rank_count() / worker_bytes))
