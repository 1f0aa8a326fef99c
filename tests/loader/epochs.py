"""An epoch over a plan, with an engine and a clock that tests control."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from feedline.abc import Scheduler
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.recovery import Recovery
from feedline.order.plan import Progress
from feedline.order.streams import SpanPlan
from feedline.schedulers import InOrder
from feedline.types import Position
from tests.loader.beginnings import plan_of
from tests.loader.drivers import Delivered, driver_of
from tests.loader.stepping import Clock, Cost, SteppingEngine


class Bench:
    """An epoch with everything it needs."""

    def __init__(
        self,
        cost: Cost | float = 1.0,
        *,
        count: int = 40,
        workers: int = 2,
        depth: int = 2,
        scheduler: Scheduler | None = None,
        timeout_s: float = 0.0,
        plan: Iterator[Any] | None = None,
        death: tuple[float, int, Exception] | None = None,
        fail: dict[Any, Exception] | None = None,
        engine: type[SteppingEngine] = SteppingEngine,
        spans: SpanPlan | None = None,
        already: Collection[int] = (),
        resumes: dict[int, Position] | None = None,
        turn: int = 0,
        snapshots: bool = False,
        restarts: int = 0,
        kills_stuck: bool = False,
    ) -> None:
        self.clock = Clock()
        self._patches = pytest.MonkeyPatch()
        self.clock.install(self._patches)
        self.engine = engine(workers, self.clock, cost if callable(cost) else lambda _: float(cost))
        self.engine.fail = {repr(key): value for key, value in (fail or {}).items()}
        if death is not None:
            self.engine.deaths.append((self.clock.now_s + death[0], *death[1:]))
        self.driver = driver_of(self.engine, recovery=Recovery(restarts=restarts))
        self.machine, self.counters = self.driver.machine, self.driver.counters
        for view in self.machine.flights.workers:
            view.since_s = 0.0  # they started long ago
        self.window = workers * depth
        progress = Progress(early=set(already), positions=dict(resumes or {}), turn=turn)
        limits = Limits(self.window, depth, timeout_s, kills_stuck=kills_stuck)
        self.epoch = Epoch(
            plan_of(numbers(count) if plan is None else plan) if spans is None else spans,
            scheduler or InOrder(),
            limits,
            progress,
            Requests(stream_count=0 if spans is None else 2, snapshot_every=int(snapshots)),
            restores=resumes is not None,
        )
        self.batches = Delivered(self.driver)
        try:
            self.driver.begin_epoch(self.epoch)
        except BaseException:
            self._patches.undo()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.undo()

    def run(self, step_s: float = 0.0) -> list[Any]:
        """Take every batch, with a training step after each."""
        batches = []
        for batch in self.batches:
            batches.append(batch)
            self.clock.now_s += step_s
        return batches

    def in_flight(self) -> int:
        return self.epoch.sent - self.epoch.done


def numbers(count: int) -> list[list[int]]:
    return [[number] for number in range(count)]


def slow_at(*ordinals: int, slow_s: float = 200.0, usual_s: float = 1.0) -> Cost:
    return lambda task: slow_s if task.indices[0] in ordinals else usual_s
