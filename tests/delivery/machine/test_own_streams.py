"""One pass over an iterable dataset with a stream per worker: they take turns, however answers arrive."""

from __future__ import annotations

from collections import deque

import pytest

from feedline.abc import Engine
from feedline.abc.faults import Failure, Fault
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.epoch import Limits, Requests
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.own_streams import OwnStreams
from feedline.delivery.machine.recovery import Recovery
from feedline.errors import DataWarning, TooManyBadSamples, WorkerDied
from feedline.faults import Policy
from feedline.order.plan import Progress
from feedline.order.streams import StreamPlan
from feedline.schedulers import InOrder, Unordered
from feedline.types import Notes, Position, Result, ResultKind, Task
from tests.loader.drivers import Delivered, driver_of


class StreamEngine(Engine):
    """Worker w answers `lengths[w]` times with (w, number), then its stream ends.

    `arrivals` says which worker answers next; when it is used up, the first with a task does. A new worker learns its
    position from the task's `resume` alone.
    """

    def __init__(self, lengths: list[int], arrivals: list[int], failing: tuple[int, int] | None = None) -> None:
        self.worker_count = len(lengths)
        self.tasks: list[deque[Task]] = [deque() for _ in lengths]
        self.most_tasks = 0
        self.failing = failing
        self.dead: Exception | None = None
        self.dying: list[int] = []
        """Who dies over the next task, in turn, whenever there is something to collect."""
        self.replaced: list[int] = []
        self.notes: dict[int, Notes] = {}
        self.digests: list[bytes | None] = []
        self.silent = False
        self.closed = False
        self._lengths = lengths
        self._answered = [0] * len(lengths)
        self._arrivals = deque(arrivals)

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        self.tasks[worker].append(task)
        self.most_tasks = max(self.most_tasks, len(self.tasks[worker]))

    def revoke(self, worker: int) -> int | None:
        return self.tasks[worker].popleft().id if self.tasks[worker] else None

    def kill(self, worker: int) -> bool:
        self.dying.append(worker)
        self.silent = False
        return True

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        if self.dead is not None:
            return [Result(ResultKind.DIED, 0, -1, self.dead)]
        if self.dying:
            worker = self.dying.pop(0) % self.worker_count
            if self.tasks[worker]:
                self.tasks[worker].popleft()  # it had started this one
            return [Result(ResultKind.DIED, worker, -1, WorkerDied(f"worker {worker} is gone"))]
        busy = [number for number, tasks in enumerate(self.tasks) if tasks]
        if self.silent:
            assert timeout_s is not None, "would wait forever"
            return []
        assert busy, "no worker has a task to wait for"
        chosen = busy[self._arrivals.popleft() % len(busy)] if self._arrivals else busy[0]
        return [self._answer(chosen, self.tasks[chosen].popleft())]

    def replace(self, worker: int) -> None:
        assert not self.tasks[worker], "its tasks were not taken back"
        self.replaced.append(worker)
        self._answered[worker] = -1000  # until it gets its resume state

    def _answer(self, worker: int, task: Task) -> Result:
        if worker in self.replaced and task.resume is not None:
            self._answered[worker] = (task.resume.place + task.resume.skip) // task.indices
        number = self._answered[worker]
        if number == self._lengths[worker]:
            return Result(ResultKind.ENDED, worker, task.id)
        self._answered[worker] += 1
        if (worker, number) == self.failing:
            return Result(ResultKind.FAILED, worker, task.id, ValueError("torn"))
        notes = self.notes.get(number)
        if self.digests and number == 0:
            notes = Notes(digests=_at_0(self.digests[worker]))
        return Result(ResultKind.DONE, worker, task.id, (worker, number), notes=notes)

    def close(self) -> None:
        self.closed = True


def noted(number: int, dataset: object, iterator: object = None) -> Notes:
    """Return the notes on a batch of four samples."""
    return Notes(Position(dataset, iterator, 4 * (number + 1), 4 * (number + 1)))


def begin(
    engine: StreamEngine,
    depth: int = 2,
    *,
    in_order: bool = True,
    timeout_s: float = 0.0,
    progress: Progress | None = None,
    snapshot_every: int = 0,
    restarts: int = 0,
    fault_budget: FaultBudget | None = None,
) -> tuple[Delivered, Driver]:
    driver = driver_of(engine, recovery=Recovery(restarts=restarts))
    limits = Limits(engine.worker_count * depth, depth, timeout_s, kills_stuck=bool(restarts))
    driver.begin_epoch(
        OwnStreams(
            StreamPlan(4, 0),
            InOrder() if in_order else Unordered(),
            limits,
            progress or Progress(),
            Requests(stream_count=4, snapshot_every=snapshot_every),
            fault_budget,
            restores=progress is not None,
        )
    )
    return Delivered(driver), driver


def test_without_order_a_fast_stream_does_not_starve_the_others() -> None:
    engine = StreamEngine([1000, 1000, 1000], [0, 1, 2] * 4)
    batches, _ = begin(engine, 2, in_order=False)
    first = [next(batches)[0] for _ in range(60)]
    assert {first.count(worker) >= 2 for worker in range(3)} == {True}


def test_a_stream_with_too_many_bad_samples_raises_whenever_a_batch_is_requested() -> None:
    """It counts the samples of the batch that exceeds the budget once, however often the batch is requested."""
    engine = StreamEngine([99], [])
    fault = Fault.of(Failure(None, OSError("disk"), "fetch", 1, 0), "skip", time=0.0)
    engine.notes = {25: Notes(Position(read=109), faults=[fault] * 5)}
    batches, _ = begin(engine, fault_budget=FaultBudget(Policy(otherwise="skip", max_share=0.01)))
    for _ in range(25):
        next(batches)
    for _ in range(200):
        with pytest.raises(TooManyBadSamples, match="5 of 109 samples failed"):
            next(batches)


# -- workers that die ---


def test_a_new_worker_gets_the_last_state_and_the_samples_delivered_since() -> None:
    engine = StreamEngine([9], [])
    engine.notes = {1: noted(1, {"n": 2}, {"i": 2})}
    batches, driver = begin(engine, 1, restarts=1)
    for _ in range(3):
        next(batches)
    assert driver.epoch.resume_for(0) == Position({"n": 2}, {"i": 2}, place=8, read=12, batches=3)


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
def test_a_stream_that_keeps_killing_workers_at_one_place_raises() -> None:
    engine = StreamEngine([9], [])
    batches, _ = begin(engine, 2, restarts=100)
    assert next(batches) == (0, 0)
    engine.dying = [0] * 50
    with pytest.raises(WorkerDied, match="worker 0 is gone"):
        list(batches)
    assert len(engine.replaced) == 3
    assert engine.closed


# -- resuming ---


@pytest.mark.parametrize(("every", "expected"), [(0, [False] * 6), (1, [True] * 6), (3, [False, False, True] * 2)])
def test_the_state_of_a_stream_is_requested_with_every_nth_batch(every: int, expected: list[bool]) -> None:
    engine = StreamEngine([9], [])
    begin(engine, 6, snapshot_every=every)
    assert [task.snapshot for task in engine.tasks[0]] == expected


def test_states_are_kept_with_the_batch_they_came_with() -> None:
    engine = StreamEngine([9], [])
    engine.notes = {1: noted(1, {"n": 2})}
    batches, driver = begin(engine, 4)
    next(batches)
    position = driver.epoch.progress.positions[0]
    assert position == Position(read=4, batches=1), "the second batch may be ready, but is not delivered"
    next(batches)
    next(batches)
    assert driver.epoch.progress.positions[0] == Position({"n": 2}, place=8, read=12, batches=3)


def test_each_stream_draws_its_own_numbers() -> None:
    engine = StreamEngine([9, 9], [])
    begin(engine, 2)
    keys = [{task.draw.key for task in tasks} for tasks in engine.tasks]
    assert [len(own) for own in keys] == [1, 1]
    assert keys[0] != keys[1]


# -- workers that deliver the same samples ---


def _at_0(digest: bytes | None) -> tuple[tuple[int, bytes], ...]:
    return () if digest is None else ((0, digest),)


def digests(*values: bytes | None) -> StreamEngine:
    """Return an engine whose workers' first samples have these digests."""
    engine = StreamEngine([3] * len(values), [])
    engine.digests = list(values)
    return engine


def test_workers_that_start_with_the_same_sample_warn_once() -> None:
    batches, _ = begin(digests(b"a", b"a", b"a"))
    with pytest.warns(DataWarning, match=r"Each of the workers delivers the whole dataset.*shard=True") as warned:
        assert len(list(batches)) == 9
    assert len(warned) == 1
