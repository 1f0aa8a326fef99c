"""One pass over a plan, with an engine and a clock that tests control."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc import Scheduler, WorkerView
from feedline.errors import BadOption, WorkerDied, WorkerWarning
from feedline.order.streams import SpanPlan
from feedline.schedulers import InOrder, Unordered
from feedline.system.ranks import Share
from feedline.types import Notes, Position, Result, ResultKind, StreamSharding, Task
from tests.loader.epochs import Bench, numbers, slow_at
from tests.loader.stepping import SteppingEngine
from tests.sampling import examples

costs = st.sampled_from([0.001, 0.01, 0.1, 1.0, 3.0])


# -- failures ---


def test_a_failure_is_raised_in_its_place_and_iteration_continues() -> None:
    with Bench(count=6, fail={(3,): ValueError("three")}, plan=iter([(number,) for number in range(6)])) as bench:
        batches: list[Any] = []
        for _ in range(6):
            try:
                batches.append(next(bench.batches))
            except ValueError as exc:
                batches.append(str(exc))
        assert batches == [(0,), (1,), (2,), "three", (4,), (5,)]
        assert bench.counters.failures == 1


def test_an_error_of_the_sampler_is_raised_in_place_of_its_batch() -> None:
    def plan() -> Iterator[list[int]]:
        yield [0]
        yield [1]
        raise LookupError("no more shards")

    with Bench(plan=plan(), workers=2, depth=4) as bench:
        assert [next(bench.batches), next(bench.batches)] == [[0], [1]]
        with pytest.raises(LookupError, match="no more shards"):
            next(bench.batches)
        with pytest.raises(StopIteration):
            next(bench.batches)


def test_indices_that_cannot_be_sent_are_raised_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(count=5) as bench:
        real = bench.engine.submit

        def submit(worker: int, task: Task) -> None:
            if task.indices == [4]:
                raise TypeError("cannot be sent")
            real(worker, task)

        monkeypatch.setattr(bench.engine, "submit", submit)
        assert [next(bench.batches) for _ in range(4)] == numbers(4)
        with pytest.raises(TypeError, match="cannot be sent"):
            next(bench.batches)
        with pytest.raises(StopIteration):
            next(bench.batches)
        assert all(view.outstanding == 0 for view in bench.machine.flights.workers)


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
@settings(deadline=None, max_examples=examples(150))
@given(
    table=st.lists(costs, min_size=1, max_size=30),
    deaths=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0, 2.5, 7.0]), st.integers(0, 3)), max_size=3),
    workers=st.integers(1, 4),
    depth=st.integers(1, 4),
    unordered=st.booleans(),
)
def test_killing_workers_at_any_moment_does_not_change_the_batches(
    table: list[float], deaths: list[tuple[float, int]], workers: int, depth: int, unordered: bool
) -> None:
    """Up to three times; after a fourth death at the same sample, the sample would be blamed."""
    scheduler = Unordered() if unordered else InOrder()
    options: dict[str, Any] = {"count": len(table), "workers": workers, "depth": depth, "scheduler": scheduler}
    with Bench(lambda task: table[task.indices[0]], restarts=3, **options) as bench:
        for after_s, worker in sorted(deaths):
            death = WorkerDied(f"worker {worker} was killed")
            bench.engine.deaths.append((bench.clock.now_s + after_s, worker % workers, death))
        batches = bench.run()
        assert (sorted(batches) if unordered else batches) == numbers(len(table))
        assert bench.counters.restarts == len(bench.engine.replaced) <= len(deaths)
        assert all(view.outstanding == 0 for view in bench.machine.flights.workers)


def test_a_death_within_the_budget_warns_with_the_next_batch() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(3, slow_s=50.0), restarts=1, death=death, count=6) as bench:
        assert [next(bench.batches) for _ in range(3)] == numbers(3)
        with pytest.warns(WorkerWarning, match=r"worker 1 is gone.*batch 3 \(sample 3\).*restart 1 of 1"):
            assert next(bench.batches) == [3]
        assert bench.run() == [[4], [5]]
        assert not bench.engine.closed


def test_a_warning_turned_into_an_error_loses_no_batch() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(3, slow_s=50.0), restarts=1, death=death, count=6) as bench, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [next(bench.batches) for _ in range(3)] == numbers(3)
        with pytest.raises(WorkerWarning):
            next(bench.batches)
        assert bench.run() == [[3], [4], [5]]


def test_a_stuck_worker_is_replaced_if_kills_stuck_is_set() -> None:
    slow = iter([True])

    def stuck_once(task: Task) -> float:
        return 5000.0 if task.indices == [3] and next(slow, False) else 1.0

    with Bench(stuck_once, timeout_s=30.0, restarts=1, kills_stuck=True, count=8) as bench:
        with pytest.warns(WorkerWarning, match=r"timed out after 30.0 seconds: worker 1 .* batch 3"):
            assert bench.run() == numbers(8)
        assert bench.engine.replaced == [1]
        assert bench.clock.now_s < 1100


def test_a_slow_worker_with_a_deep_queue_is_not_stuck() -> None:
    """It has answered since the training loop started to wait."""
    with Bench(20.0, workers=1, depth=4, timeout_s=30.0, restarts=1, kills_stuck=True, count=8) as bench:
        next(bench.batches)
        assert bench.run() == numbers(8)[1:]
        assert bench.engine.replaced == []


def test_a_timeout_counts_from_the_last_batch() -> None:
    with Bench(20.0, count=10, timeout_s=30.0) as bench:
        assert bench.run() == numbers(10)


# -- schedulers that misbehave ---


class Odd(InOrder):
    """A correct scheduler whose subclasses misbehave."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class HoldsBack(Odd):
    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return None if ordinal == 3 else super().assign(ordinal, indices, workers)


class TakesNone(Odd):
    def take(self, ready: Collection[int], expected: int) -> int | None:
        return None


class TakesWrong(Odd):
    def take(self, ready: Collection[int], expected: int) -> int | None:
        return 77


class NoSuchWorker(Odd):
    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return 2


class MovesToNoSuchWorker(Odd):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 0, 9


class MovesInCircles(Odd):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 0, 0


class MovesFromIdle(Odd):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 1, 1


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (HoldsBack(), r"HoldsBack\(\) holds back batch 3 although every worker is idle"),
        (TakesNone(), r"TakesNone\(\) delivers none of the finished batches"),
        (TakesWrong(), r"TakesWrong\(\) delivers batch 77, which is not among"),
        (NoSuchWorker(), r"NoSuchWorker\(\) chose worker 2, but there are workers 0 to 1"),
        (MovesToNoSuchWorker(), r"MovesToNoSuchWorker\(\) gives work of worker 0 to worker 9"),
        (MovesInCircles(), r"MovesInCircles\(\) gives work of worker 0 to worker 0"),
        (MovesFromIdle(), r"gives work of worker 1 to worker 1: .*The first must have work"),
    ],
)
def test_a_misbehaving_scheduler_raises(scheduler: Scheduler, message: str) -> None:
    with pytest.raises(BadOption, match=message), Bench(slow_at(0, slow_s=900.0), scheduler=scheduler) as bench:
        bench.run()


# -- schedulers that wait ---


class OneAtATime(Scheduler):
    """Holds all tasks back while any worker is busy."""

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return None if any(worker.outstanding for worker in workers) else ordinal % len(workers)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return min(ready)


def test_a_scheduler_may_hold_tasks_back() -> None:
    with Bench(scheduler=OneAtATime(), count=10) as bench:
        assert bench.run() == numbers(10)


# -- resuming ---


def test_a_failed_batch_counts_as_delivered() -> None:
    with Bench(count=3, fail={(1,): ValueError("one")}, plan=iter([(number,) for number in range(3)])) as bench:
        next(bench.batches)
        with pytest.raises(ValueError, match="one"):
            next(bench.batches)
        assert bench.epoch.progress.delivered == 2


@settings(deadline=None, max_examples=examples(100))
@given(
    already=st.sets(st.integers(1, 19), max_size=12),
    table=st.lists(costs, min_size=20, max_size=20),
    workers=st.integers(1, 4),
    depth=st.integers(1, 3),
    unordered=st.booleans(),
)
def test_batches_delivered_before_a_resumption_are_not_delivered_again(
    already: set[int], table: list[float], workers: int, depth: int, unordered: bool
) -> None:
    scheduler = Unordered() if unordered else InOrder()
    options: dict[str, Any] = {"count": 20, "workers": workers, "depth": depth, "scheduler": scheduler}
    with Bench(lambda task: table[task.indices[0]], already=already, **options) as bench:
        batches = bench.run()
        expected = [[number] for number in range(20) if number not in already]
        assert (sorted(batches) if unordered else batches) == expected
        assert bench.epoch.progress.delivered == 20
        assert bench.epoch.progress.early == set()


def test_each_workers_first_task_has_its_resume_state() -> None:
    resumes = {0: Position({"n": 1}), 1: Position({"n": 2})}
    with Bench(count=6, resumes=dict(resumes), snapshots=True) as bench:
        bench.run()
        resumed = [(worker, task.resume) for worker, task in bench.engine.submitted if task.resume is not None]
        assert resumed == list(resumes.items())
        assert all(task.snapshot for _, task in bench.engine.submitted)


def test_a_resumed_epoch_starts_with_the_worker_whose_turn_it_was() -> None:
    with Bench(count=6, workers=3, depth=1, turn=2) as bench:
        assert bench.run() == numbers(6)
        assert [worker for worker, _ in bench.engine.submitted] == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize(("known", "expected"), [({}, None), ({1: Position({"n": 5})}, Position({"n": 5}))])
def test_a_new_worker_resumes_from_the_state_at_the_start_of_the_epoch(
    known: dict[int, Position], expected: Position | None
) -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(1, slow_s=50.0), restarts=1, death=death, count=4, resumes=dict(known)) as bench:
        with pytest.warns(WorkerWarning):
            assert bench.run() == numbers(4)
        again = [task for worker, task in bench.engine.submitted if worker == 1 and task.indices == [1]]
        assert [task.resume for task in again] == [known.get(1), expected]


class SendsStates(SteppingEngine):
    """Sends a state of its dataset with every batch."""

    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes(Position({"made": task.indices[0]}))
        return result


def test_a_new_worker_resumes_from_the_last_state_that_the_old_one_sent() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(5, slow_s=50.0), restarts=1, death=death, count=8, engine=SendsStates, snapshots=True) as bench:
        with pytest.warns(WorkerWarning):
            assert bench.run() == numbers(8)
        again = [task for worker, task in bench.engine.submitted if worker == 1 and task.indices == [5]]
        assert [task.resume for task in again][-1] == Position({"made": 3})


# -- shared streams ---


class Ending(SteppingEngine):
    """Its stream ends before batch `end`."""

    end = 7

    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        if task.indices.number >= self.end:
            return Result(ResultKind.ENDED, worker, task.id)
        result.payload = task.indices.number
        return result


@settings(deadline=None, max_examples=examples(60))
@given(
    table=st.lists(costs, min_size=60, max_size=60),
    workers=st.integers(1, 4),
    depth=st.integers(1, 4),
    unordered=st.booleans(),
    end=st.integers(0, 9),
)
def test_a_stream_ends_where_the_first_worker_finds_its_end(
    table: list[float], workers: int, depth: int, unordered: bool, end: int
) -> None:
    with Bench(
        lambda task: table[task.indices.number % 60],
        workers=workers,
        depth=depth,
        scheduler=Unordered() if unordered else InOrder(),
        spans=SpanPlan(StreamSharding(2, Share())),
        engine=Ending,
    ) as bench:
        assert isinstance(bench.engine, Ending)
        bench.engine.end = end
        batches = bench.run()
        assert (sorted(batches) if unordered else batches) == list(range(end))
        assert bench.counters.relieved == 0, "a stream cannot move to another worker"
        with pytest.raises(StopIteration):
            next(bench.batches)
        assert not bench.epoch.ready
