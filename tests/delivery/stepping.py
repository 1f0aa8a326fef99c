"""An epoch over a plan, with an engine and a clock that tests control: hours pass at once, every run is the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from feedline.abc import Engine, Scheduler
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver import driver
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery
from feedline.frameworks.numpy import NumpyFramework
from feedline.order.plan import Progress
from feedline.schedulers import InOrder
from feedline.types import Result, ResultKind, Task
from tests.loader.beginnings import plan_of


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def install(self, patches: pytest.MonkeyPatch) -> None:
        """Make drivers use this clock."""
        patches.setattr(driver, "time", self)


Cost = Callable[[Task], float]


class SteppingEngine(Engine):
    """Workers with a given cost for each task, on a clock that jumps from event to event.

    A worker that dies loses its current task; its waiting tasks can be revoked. The payload of a finished task is its
    indices. `collect` moves the clock to the next result, at most by its timeout; a wait for something that will never
    come fails instead of hanging.
    """

    def __init__(self, worker_count: int, clock: Clock, cost: Cost) -> None:
        self.worker_count = worker_count
        self.clock = clock
        self.cost = cost
        self.closed = False
        self.submitted: list[tuple[int, Task]] = []
        self.deaths: deque[tuple[float, int, Exception]] = deque()
        self.fail: dict[Any, Exception] = {}
        self.replaced: list[int] = []
        self._dead: set[int] = set()
        self._queues: list[deque[Task]] = [deque() for _ in range(worker_count)]
        self._done_s: list[float] = [0.0] * worker_count
        self._answers: list[tuple[float, Result]] = []

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        assert not self.closed
        self._settle()
        self.submitted.append((worker, task))
        self._queues[worker].append(task)
        if len(self._queues[worker]) == 1 and worker not in self._dead:
            self._done_s[worker] = self.clock.now_s + self.cost(task)

    def revoke(self, worker: int) -> int | None:
        self._settle()
        begun = 0 if worker in self._dead else 1
        if len(self._queues[worker]) <= begun:
            return None
        task = self._queues[worker][begun]
        del self._queues[worker][begun]
        return task.id

    def replace(self, worker: int) -> None:
        assert worker in self._dead or not self._queues[worker], "it is busy"
        self._dead.discard(worker)
        self._queues[worker].clear()
        self.replaced.append(worker)

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        until = None if timeout_s is None else self.clock.now_s + max(0.0, timeout_s)
        while True:
            self._settle()
            ready = [result for _, result in self._answers if worker in (None, result.worker)]
            if ready:
                self._answers = [(when, result) for when, result in self._answers if result not in ready]
                return ready
            if self.deaths and self.deaths[0][0] <= self.clock.now_s:
                _, dead, exc = self.deaths.popleft()
                if dead in self._dead:
                    continue
                self._dead.add(dead)
                if self._queues[dead]:
                    self._queues[dead].popleft()
                results = [result for _, result in self._answers if result.worker == dead]
                self._answers = [(when, result) for when, result in self._answers if result.worker != dead]
                return [*results, Result(ResultKind.DIED, dead, -1, exc)]
            busy = [
                self._done_s[number] for number, queue in enumerate(self._queues) if queue and number not in self._dead
            ]
            events = [*busy, *(when for when, _, _ in self.deaths)]
            next_s = min(events) if events else None
            if until is not None and (next_s is None or next_s > until):
                self.clock.now_s = until
                return []
            assert next_s is not None, "would wait forever: nothing is in flight"
            self.clock.now_s = max(self.clock.now_s, next_s)

    def _settle(self) -> None:
        """Complete all tasks that should be done by now."""
        for worker, queue in enumerate(self._queues):
            while queue and worker not in self._dead and self._done_s[worker] <= self.clock.now_s:
                task = queue.popleft()
                when = self._done_s[worker]
                self._answers.append((when, self._result(worker, task)))
                if queue:
                    self._done_s[worker] = when + self.cost(queue[0])
        self._answers.sort(key=lambda answer: answer[0])

    def _result(self, worker: int, task: Task) -> Result:
        key = repr(task.indices)
        if key in self.fail:
            return Result(ResultKind.FAILED, worker, task.id, self.fail[key])
        return Result(ResultKind.DONE, worker, task.id, task.indices, max(1, int(self.cost(task) * 1e9)))

    def close(self) -> None:
        self.closed = True
        for queue in self._queues:
            queue.clear()


def driver_of(
    engine: Engine,
    *,
    recovery: Recovery | None = None,
    now_s: float = 0.0,
) -> Driver:
    """Return a driver for an engine that is open, or needs no opening."""
    slots = Slots(None, NumpyFramework(), Counters())
    machine = Machine(engine.worker_count, slots, recovery or Recovery(), slots.counters, now_s=now_s)
    return Driver(engine, machine, slots)


class Delivered(Iterator[Any]):
    """Iterates over the batches that a driver delivers in its current epoch."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __next__(self) -> Any:
        if self._driver.closed:
            raise StopIteration
        return self._driver.next()


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
        engine: type[SteppingEngine] = SteppingEngine,
        turn: int = 0,
        restarts: int = 0,
    ) -> None:
        self.clock = Clock()
        self._patches = pytest.MonkeyPatch()
        self.clock.install(self._patches)
        self.engine = engine(workers, self.clock, cost if callable(cost) else lambda _: float(cost))
        if death is not None:
            self.engine.deaths.append((self.clock.now_s + death[0], *death[1:]))
        self.driver = driver_of(self.engine, recovery=Recovery(restarts=restarts))
        self.counters = self.driver.counters
        for view in self.driver.machine.flights.workers:
            view.since_s = 0.0  # they started long ago
        self.epoch = Epoch(
            plan_of(numbers(count) if plan is None else plan),
            scheduler or InOrder(),
            Limits(workers * depth, depth, timeout_s),
            Progress(turn=turn),
            Requests(),
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
