"""An epoch over a plan, on an engine and a clock that tests move by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from feedline.abc import Scheduler
from feedline.frameworks.numpy import NumpyFramework
from feedline.core.counters import Counters
from feedline.loader.crew import Crew
from feedline.loader.limits import Limits
from feedline.loader.map_epoch import MapEpoch
from feedline.state.progress import Progress
from feedline.loader.rescue import Care
from feedline.plan.foreign import ForeignPlan
from feedline.plan.spans import SpanPlan
from feedline.policies import InOrder
from tests.loader.stepping import Clock, Cost, SteppingEngine


class Bench:
    """An epoch with everything around it."""

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
        restarts: int = 0,
        kills_stuck: bool = False,
        **more: Any,
    ) -> None:
        self.clock = Clock()
        self._patches = pytest.MonkeyPatch()
        self.clock.install(self._patches)
        self.engine = engine(workers, self.clock, cost if callable(cost) else lambda _: float(cost))
        self.engine.fail = {repr(key): value for key, value in (fail or {}).items()}
        if death is not None:
            self.engine.deaths.append((self.clock.now_s + death[0], *death[1:]))
        self.crew = Crew(self.engine, None, NumpyFramework(), Counters(), care=Care(restarts=restarts))
        for view in self.crew.workers:
            view.since_s = 0.0  # they have been there for long
        self.window = workers * depth
        plan = iter([[number] for number in range(count)]) if plan is None else plan
        try:
            self.epoch = MapEpoch(
                self.crew,
                ForeignPlan(plan) if spans is None else spans,
                scheduler or InOrder(),
                Limits(self.window, depth, timeout_s, kills_stuck=kills_stuck),
                Progress(),
                already=tuple(already),
                **more,
            )
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
        for batch in self.epoch:
            batches.append(batch)
            self.clock.now_s += step_s
        return batches

    def in_flight(self) -> int:
        return self.epoch._window.sent - self.epoch._window.delivered


def numbers(count: int) -> list[list[int]]:
    return [[number] for number in range(count)]


def slow_at(*ordinals: int, slow_s: float = 200.0, usual_s: float = 1.0) -> Cost:
    return lambda task: slow_s if task.indices[0] in ordinals else usual_s
