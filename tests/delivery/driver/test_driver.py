"""The driver performs the machine's decisions on an engine and reports the results."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from feedline import Loader
from feedline.abc import Engine
from feedline.abc.scheduler import WorkerView
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.machine import Machine
from feedline.errors import WorkerDied, WorkerStartError, WorkerTimeout
from feedline.order.plan import Progress
from feedline.schedulers import InOrder, LeastLoaded
from feedline.types import Call, Task
from tests.delivery.stepping import Bench, Clock, Delivered, SteppingEngine, driver_of, numbers, slow_at
from tests.loader.beginnings import plan_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.install(monkeypatch)
    return clock


def begin(driver: Driver, count: int = 4) -> Delivered:
    driver.begin_epoch(Epoch(plan_of(numbers(count)), InOrder(), Limits(4, 2), Progress(), Requests()))
    return Delivered(driver)


class Choosy(SteppingEngine):
    """Fails to send some tasks."""

    def submit(self, worker: int, task: Task) -> None:
        if task.indices == [2]:
            raise ValueError("no twos")
        super().submit(worker, task)


def test_short_tasks_are_submitted_one_by_one_if_the_engine_cannot_group_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "are_short", True)
    delivered = begin(driver_of(Choosy(2, clock, lambda _: 1.0)), 6)
    assert [next(delivered), next(delivered)] == [[0], [1]]
    with pytest.raises(ValueError, match="no twos"):
        next(delivered)
    assert list(delivered) == [[3], [4], [5]]


class Placing(SteppingEngine):
    """Has no resources for its workers at first."""

    def alive_s(self, worker: int) -> float:
        return 1049.0 if self.clock.now_s > 1049.0 else math.inf


def test_a_timeout_does_not_count_the_time_a_worker_waits_for_resources(clock: Clock) -> None:
    def started(engine: SteppingEngine) -> Delivered:
        driver = driver_of(engine, now_s=clock.now_s)
        driver.begin_epoch(Epoch(plan_of(numbers(2)), InOrder(), Limits(4, 2, timeout_s=5.0), Progress(), Requests()))
        return Delivered(driver)

    assert next(started(Placing(1, clock, lambda _: 52.0))) == [0]
    clock.now_s = 1000.0
    with pytest.raises(WorkerTimeout):
        next(started(Placing(1, clock, lambda _: 90.0)))
    assert clock.now_s == pytest.approx(1054.0)


class Plain(SteppingEngine):
    """Cannot replace workers, which is optional."""

    replace = Engine.replace


def test_a_death_ends_the_epoch_if_the_engine_cannot_replace_workers() -> None:
    death = (0.5, 0, WorkerDied("worker 0 is gone"))
    with Bench(death=death, restarts=1, engine=Plain) as bench:
        with pytest.raises(WorkerStartError, match="cannot start another worker") as caught:
            bench.run()
        assert isinstance(caught.value.__cause__, WorkerDied)
        assert bench.driver.closed


def test_an_interrupt_while_a_worker_is_replaced_ends_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(worker: int) -> None:
        raise KeyboardInterrupt

    with Bench(death=(0.5, 0, WorkerDied("worker 0 is gone")), restarts=1) as bench:
        monkeypatch.setattr(bench.engine, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.run()
        assert bench.engine.closed


def test_a_call_reaches_every_worker_and_its_failure_is_raised_by_the_next_batch(clock: Clock) -> None:
    engine = SteppingEngine(2, clock, lambda _: 1.0)
    engine.fail = {repr(Call("set_epoch", (3,))): ValueError("of set_epoch")}
    driver = driver_of(engine)
    batches = begin(driver, 8)
    driver.broadcast(Call("set_epoch", (3,)))
    came: list[Any] = []
    while len(came) < 9:
        try:
            came.append(next(batches))
        except ValueError as exc:
            came.append(str(exc))
    assert [batch for batch in came if batch != "of set_epoch"] == numbers(8), "no batch is lost"


def test_a_leaving_driver_does_not_wait_for_its_workers() -> None:
    with Bench(slow_at(0, slow_s=1e6), count=4) as bench:
        bench.driver.leaving = True
        assert bench.run() == []


class Forgetful(InOrder):
    """Raises once."""

    raises = True

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        if ordinal == 6 and self.raises:
            self.raises = False
            raise LookupError("whose turn is it?")
        return super().assign(ordinal, indices, workers)


def test_a_scheduler_that_raises_loses_no_batch() -> None:
    came: list[Any] = []
    with Bench(count=10, scheduler=Forgetful()) as bench:
        while len(came) < 20:
            try:
                came.append(next(bench.batches))
            except StopIteration:
                break
            except LookupError as exc:
                came.append(exc)
    assert [batch for batch in came if isinstance(batch, list)] == numbers(10)
    assert [str(exc) for exc in came if isinstance(exc, LookupError)] == ["whose turn is it?"]


class Noted(list[int]):
    """Records which samples were made."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.made: list[int] = []  # shared by all copies
        self.changed = threading.Condition()

    def __getitem__(self, index: Any) -> Any:
        with self.changed:
            self.made.append(index)
            self.changed.notify_all()
        return super().__getitem__(index)

    def awaits(self, count: int) -> bool:
        """Wait until `count` samples were made."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.made) >= count, 30)


def test_tasks_that_a_scheduler_held_back_are_assigned_when_a_batch_is_requested() -> None:
    dataset = Noted(30)
    loader = Loader(dataset, 1, workers=1, engine="thread", prefetch=8, scheduler=LeastLoaded())
    batches = iter(loader)
    for step in range(1, 5):  # the worker gets two at once, and one is consumed
        assert next(batches).tolist() == [step - 1]
        assert dataset.awaits(2 * step + 1), step
    assert [batch.tolist() for batch in batches] == [[number] for number in range(4, 30)]
