"""One pass over an iterable dataset with a stream per worker: they take turns, however answers arrive."""

from __future__ import annotations

from collections import deque

import pytest

from feedline.abc import Engine, Scheduler
from feedline.abc.faults import Failure, Fault
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.epoch import Limits, Requests
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.own_streams import OwnStreams
from feedline.errors import TooManyBadSamples
from feedline.faults import Policy
from feedline.order.plan import Progress
from feedline.order.streams import StreamPlan
from feedline.schedulers import InOrder, Unordered
from feedline.types import Notes, Position, Result, ResultKind, Task
from tests.delivery.stepping import Delivered, driver_of


class StreamEngine(Engine):
    """Each worker answers with (worker, number), forever. `arrivals` says which answers next; then the first does."""

    def __init__(self, worker_count: int, arrivals: list[int] | None = None) -> None:
        self.worker_count = worker_count
        self.tasks: list[deque[Task]] = [deque() for _ in range(worker_count)]
        self.notes: dict[int, Notes] = {}
        """Notes on the batches with these numbers."""
        self._answered = [0] * worker_count
        self._arrivals = deque(arrivals or [])

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        self.tasks[worker].append(task)

    def revoke(self, worker: int) -> int | None:
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        busy = [number for number, tasks in enumerate(self.tasks) if tasks]
        chosen = busy[self._arrivals.popleft() % len(busy)] if self._arrivals else busy[0]
        task, number = self.tasks[chosen].popleft(), self._answered[chosen]
        self._answered[chosen] += 1
        return [Result(ResultKind.DONE, chosen, task.id, (chosen, number), notes=self.notes.get(number))]

    def close(self) -> None:
        pass


def noted(number: int, dataset: object, iterator: object = None) -> Notes:
    """Return the notes on a batch of four samples."""
    return Notes(Position(dataset, iterator, 4 * (number + 1), 4 * (number + 1)))


def begin(
    engine: StreamEngine,
    depth: int = 2,
    *,
    scheduler: Scheduler | None = None,
    snapshot_every: int = 0,
    fault_budget: FaultBudget | None = None,
) -> tuple[Delivered, Driver]:
    driver = driver_of(engine)
    limits = Limits(engine.worker_count * depth, depth)
    requests = Requests(stream_count=4, snapshot_every=snapshot_every)
    scheduler = scheduler or InOrder()
    driver.begin_epoch(OwnStreams(StreamPlan(4, 0), scheduler, limits, Progress(), requests, fault_budget))
    return Delivered(driver), driver


def test_without_order_a_fast_stream_does_not_starve_the_others() -> None:
    engine = StreamEngine(3, [0, 1, 2] * 4)
    batches, _ = begin(engine, 2, scheduler=Unordered())
    first = [next(batches)[0] for _ in range(60)]
    assert {first.count(worker) >= 2 for worker in range(3)} == {True}


def test_a_stream_with_too_many_bad_samples_raises_whenever_a_batch_is_requested() -> None:
    """It counts the samples of the batch that exceeds the budget once, however often the batch is requested."""
    engine = StreamEngine(1)
    fault = Fault.of(Failure(None, OSError("disk"), "fetch", 1, 0), "skip", time=0.0)
    engine.notes = {25: Notes(Position(read=109), faults=[fault] * 5)}
    batches, _ = begin(engine, fault_budget=FaultBudget(Policy(otherwise="skip", max_share=0.01)))
    for _ in range(25):
        next(batches)
    for _ in range(200):
        with pytest.raises(TooManyBadSamples, match="5 of 109 samples failed"):
            next(batches)


# -- states ---


def test_a_new_worker_gets_the_last_state_and_the_samples_delivered_since() -> None:
    engine = StreamEngine(1)
    engine.notes = {1: noted(1, {"n": 2}, {"i": 2})}
    batches, driver = begin(engine, 1)
    for _ in range(3):
        next(batches)
    assert driver.epoch.resume_for(0) == Position({"n": 2}, {"i": 2}, place=8, read=12, batches=3)


@pytest.mark.parametrize(("every", "expected"), [(0, [False] * 6), (1, [True] * 6), (3, [False, False, True] * 2)])
def test_the_state_of_a_stream_is_requested_with_every_nth_batch(every: int, expected: list[bool]) -> None:
    engine = StreamEngine(1)
    begin(engine, 6, snapshot_every=every)
    assert [task.snapshot for task in engine.tasks[0]] == expected


def test_states_are_kept_with_the_batch_they_came_with() -> None:
    engine = StreamEngine(1)
    engine.notes = {1: noted(1, {"n": 2})}
    batches, driver = begin(engine, 4)
    next(batches)
    position = driver.epoch.progress.positions[0]
    assert position == Position(read=4, batches=1), "the second batch may be ready, but is not delivered"
    next(batches)
    next(batches)
    assert driver.epoch.progress.positions[0] == Position({"n": 2}, place=8, read=12, batches=3)


def test_each_stream_draws_its_own_numbers() -> None:
    engine = StreamEngine(2)
    begin(engine, 2)
    keys = [{task.draw.key for task in tasks} for tasks in engine.tasks]
    assert [len(own) for own in keys] == [1, 1]
    assert keys[0] != keys[1]
