"""How many workers a loader has, if it is to find out itself (`num_workers="auto"`): measures, and does what follows.

`Tuning` lives as long as its loader, from epoch to epoch. `TunedDriver` measures periods, tells the controller, and has
the machine add and retire workers between two batches. What is not measured: the time until every worker has answered
once, and until the batches that were ahead then are used up; and the time between two epochs.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.settings import DEFAULT_DEPTH, Settings
from feedline.delivery.machine.controller import MOST_DEPTH, Controller, Measurement
from feedline.delivery.machine.epoch import Epoch
from feedline.system.limits import memory_limit, physical_bytes, usable_cores
from feedline.system.process import own_bytes, scheduled_s
from feedline.types.ranks import local_rank_count

logger = logging.getLogger("feedline")

START = 2
"""Workers to begin with: enough to see whether more would help, and few enough for any machine."""

_MOST = 64
"""Workers of one loader, or as many as there are cores. A guess; what sleeps longer is better read with `asyncio`."""

_EVERY = 4
"""Batches after which it is looked whether a period is over."""

_LEAST_BATCHES = 8
_LEAST_S = 0.4
"""How long a period is at least: long enough that the rate of two of them differs by a few percent. Guesses."""

_MOST_SHARE = 0.01
"""Share of the time that looking at the memory of workers may take: milliseconds for each of them, while nobody hands
out batches."""


@dataclass
class Tuning:
    """What was found out for one loader: how many workers it has, and why.

    Args:
        count: how many workers there are; 0 if batches are made in the training loop itself.
        most: how many there may come to be.
        least: how few.
        depth: batches per worker that are under way or waiting.
        tunes_depth: True if that may change.
    """

    count: int
    most: int
    least: int = 1
    depth: int = DEFAULT_DEPTH
    tunes_depth: bool = False
    log: list[str] = field(default_factory=list)
    """A line for every decision, with its reason."""
    engine: str | None = None
    """What was chosen to run the workers; None if that was left alone."""
    cores: float | None = None
    """How many can compute at the same time; None for what this machine has for each rank."""
    finds_workers: bool = False
    """True if the number of workers is to be found (`num_workers="auto"`), not the depth alone."""
    is_begun: bool = False
    """True once it was settled with what to begin."""
    _start: int = 0
    _controller: Controller | None = None

    def __post_init__(self) -> None:
        self._start = self.count

    @classmethod
    def from_cores(cls, **options: Any) -> Tuning:
        """Return where to begin on this machine, of which every rank has a part."""
        most = max(START, max(_MOST, usable_cores()) // local_rank_count())
        return cls(START, most, finds_workers=True, **options)

    @classmethod
    def fixed(cls, count: int, engine: str, depth: int) -> Tuning:
        """Return what gives a loader these workers, whatever its arguments say."""
        return cls(count, count, least=count, depth=depth, engine=engine, is_begun=True)

    def fix(self, count: int, line: str) -> None:
        """Have so many workers for good, and say why."""
        self.count = self.least = self.most = self._start = count
        self.tunes_depth = False
        self.say(line)

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings of a loader that goes by this. They are the same all the time."""
        return replace(
            settings,
            worker_count=self._start,
            depth=DEFAULT_DEPTH if self.tunes_depth else self.depth,
            most_workers=self.most,
            most_depth=MOST_DEPTH if self.tunes_depth else 0,
            engine=self.engine or settings.engine,
        )

    @property
    def is_under_way(self) -> bool:
        """True if something may still change."""
        return self.most > self.least or self.tunes_depth

    @property
    def is_settled(self) -> bool:
        """True if the number of workers was found, or follows from what the dataset is."""
        is_found = self._controller is not None and self._controller.is_settled
        return self.is_begun and (self.least == self.most or is_found)

    @property
    def state(self) -> str | None:
        """How far the search for the number of workers is, in a word; None if that was given."""
        if not self.finds_workers:
            return None
        return "settled" if self.is_settled else "searching"

    def copy(self) -> Tuning:
        """Return the same for another loader, which finds out for itself."""
        return replace(self, count=self._start, log=list(self.log), _controller=None)

    @property
    def controller(self) -> Controller:
        """What decides; made when the first period is over."""
        if self._controller is None:
            cores = self.cores or max(1.0, usable_cores() / local_rank_count())
            self._controller = Controller(
                self.count,
                most=self.most,
                least=self.least,
                cores=cores,
                depth=self.depth,
                tunes_depth=self.tunes_depth,
            )
        return self._controller

    def decide(self, period: Measurement) -> bool:
        """Take note of a period; returns True if `count` or `depth` are others from now on."""
        controller = self.controller
        said = len(controller.log)
        has_changed = controller.decide(period)
        self._take_over(controller, said)
        return has_changed

    def is_refused(self, count: int) -> None:
        """There are no more than so many workers."""
        said = len(self.controller.log)
        self.controller.is_refused(count)
        self._take_over(self.controller, said)

    def _take_over(self, controller: Controller, said: int) -> None:
        self.count, self.depth = controller.count, controller.depth
        for line in controller.log[said:]:
            self.say(line)

    def say(self, line: str) -> None:
        """Add a line to the log."""
        self.log.append(line)
        logger.info("%s", line)


class TunedDriver(Driver):
    """A driver whose number of workers changes."""

    tuning: Tuning
    """What it goes by, and tells what it sees; set before the first epoch."""
    _asked = _due = _start = 0
    """Batches asked for; of which it looks again; since which it measures."""
    _is_warm = False
    """True if every worker has answered."""
    _waited_s = 0.0
    _since: tuple[float, float, int, int, float, float] | None = None
    """What was so when the period began: the time, waiting, tasks, their time, computing, waiting for a core; None if
    there is none."""
    _memory = (0.0, 0.0, 0)
    """When to look at it again; what a worker has of its own, on average; what all processes have together."""

    def begin_epoch(self, epoch: Epoch) -> None:
        self._pause()
        depth = self.tuning.depth
        self.machine.is_elastic = self.tuning.least < self.tuning.most
        epoch.limits = replace(epoch.limits, window=len(self.machine.active) * depth, depth=depth)
        super().begin_epoch(epoch)

    def next(self) -> Any:
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
        if len(self.machine.active) < self.tuning.count:  # for one of them there was no place
            self.tuning.is_refused(len(self.machine.active))

    def _pause(self) -> None:
        """Measure nothing until every worker has answered, and what was ahead then is used up."""
        self._since, self._is_warm = None, False
        self._due = self._asked + 1

    def _look(self) -> None:
        machine, tuning = self.machine, self.tuning
        self._due = self._asked + _EVERY
        if not self._is_warm:
            self._is_warm = machine.is_settled
            if self._is_warm:
                self._due = self._asked + 1 + tuning.count * tuning.depth
            return
        now_s = time.monotonic()
        if self._since is None:
            self._start, self._since = self._asked, (now_s, self._waited_s, *machine.work(), *self._scheduled_s())
            return
        begun_s, waited_s, tasks, busy_ns, computed_before_s, queued_before_s = self._since
        batches, seconds = self._asked - self._start, now_s - begun_s
        answered, worked_ns = machine.work()
        if batches < max(_LEAST_BATCHES, 2 * tuning.count) or seconds < _LEAST_S or answered == tasks:
            return
        busy_s = (worked_ns - busy_ns) / 1e9
        computed_s, queued_s = self._scheduled_s()
        computed_s, own_s = computed_s - computed_before_s, busy_s - (queued_s - queued_before_s)
        share = computed_s / own_s if computed_s > 0 and own_s > 0 else 1.0  # if it is not known: all of it
        period = Measurement(
            batches,
            seconds,
            min(self._waited_s - waited_s, seconds),
            busy_s / (answered - tasks),
            min(1.0, share),
            self._room(),
        )
        self._pause()
        has_changed = tuning.decide(period)
        self._observer.settle(self.counters.batches, is_settled=tuning.is_settled)
        if has_changed:
            machine.now_s = now_s
            machine.resize(tuning.count, tuning.depth)
            self._perform()
            tuning.is_refused(len(machine.active))

    def _scheduled_s(self) -> tuple[float, float]:
        """Return how long the workers have computed so far, and how long they could have and had no core.

        If they are threads, it is what all threads beside this one have computed; the rest is not known.
        """
        pids = self.engine.pids
        if not pids:
            return time.process_time() - time.thread_time(), 0.0
        computed_s, queued_s = zip(*map(scheduled_s, pids), strict=True)
        return sum(computed_s), sum(queued_s)

    def _room(self) -> int:
        """Return for how many workers there is memory: more of them may take half of what is free."""
        look_s, worker_bytes, used = self._memory
        now_s, pids = time.monotonic(), self.engine.pids
        if pids and now_s >= look_s:
            sizes = [size for pid in pids if (size := own_bytes(pid))]
            worker_bytes = sum(sizes) / max(len(sizes), 1)
            used = sum(sizes) + (own_bytes(os.getpid()) or 0)
            after_s = time.monotonic()
            self._memory = after_s + (after_s - now_s) / _MOST_SHARE, worker_bytes, used
        free = physical_bytes()[1]
        if not worker_bytes or free is None:
            return 1 << 30
        free = min(free, memory_limit() - used)
        return len(pids) + max(0, int(free / 2 / local_rank_count() / worker_bytes))
