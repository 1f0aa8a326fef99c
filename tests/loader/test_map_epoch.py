"""One pass over a map-style dataset, on an engine and a clock that tests move by hand."""

from __future__ import annotations

import random
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc import Scheduler, WorkerView
from feedline.errors import BadOption, SplitTwice, WorkerDied, WorkerRestarted, WorkerTimeout
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader import crew as crew_module
from feedline.loader import map_epoch as map_epoch_module
from feedline.loader.crew import Counters, Crew
from feedline.loader.map_epoch import _RUN_AHEAD, Limits, MapEpoch
from feedline.loader.progress import Progress
from feedline.loader.rescue import Care
from feedline.plan.foreign import ForeignPlan
from feedline.plan.spans import SpanPlan
from feedline.policies import InOrder, Unordered
from feedline.transport.arena import Arena
from feedline.types import Notes, Result, ResultKind, Resume, Share, StreamSplit, Task
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
        for module in (crew_module, map_epoch_module):
            self._patches.setattr(module, "time", self.clock)
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
        return self.epoch._sent - self.epoch._delivered


def numbers(count: int) -> list[list[int]]:
    return [[number] for number in range(count)]


# -- order and window ---

costs = st.sampled_from([0.001, 0.01, 0.1, 1.0, 3.0])


@settings(deadline=None, max_examples=150)
@given(
    table=st.lists(costs, min_size=1, max_size=30),
    workers=st.integers(1, 5),
    depth=st.integers(1, 4),
    step_s=st.sampled_from([0.0, 0.005, 0.5]),
    unordered=st.booleans(),
)
def test_any_durations_give_every_batch_once(
    table: list[float], workers: int, depth: int, step_s: float, unordered: bool
) -> None:
    scheduler = Unordered() if unordered else InOrder()
    options: dict[str, Any] = {"count": len(table), "workers": workers, "depth": depth, "scheduler": scheduler}
    with Bench(lambda task: table[task.indices[0]], **options) as bench:
        most = 0
        batches = []
        for batch in bench.epoch:
            batches.append(batch)
            most = max(most, bench.in_flight())
            bench.clock.now_s += step_s
        assert (sorted(batches) if unordered else batches) == numbers(len(table))
        assert most <= bench.window * _RUN_AHEAD
        if bench.crew.counters.run_ahead == 0:
            assert most <= bench.window
        with pytest.raises(StopIteration):
            next(bench.epoch)


@pytest.mark.parametrize("step_s", [0.0, 0.2, 5.0])
@pytest.mark.parametrize("scheduler", [InOrder, Unordered])
def test_with_equal_work_the_window_is_never_exceeded(step_s: float, scheduler: type[Scheduler]) -> None:
    with Bench(1.0, workers=3, depth=2, scheduler=scheduler()) as bench:
        assert bench.in_flight() == 6, "full from the start"
        for _ in bench.epoch:
            assert bench.in_flight() <= 6
            bench.clock.now_s += step_s
        assert bench.crew.counters.run_ahead == 0
        assert bench.crew.counters.relieved == 0
        if scheduler is InOrder:
            assert [worker for worker, _ in bench.engine.submitted] == [number % 3 for number in range(40)]


def test_the_plan_is_asked_only_for_what_fits_the_window() -> None:
    asked = 0

    def plan() -> Iterator[list[int]]:
        nonlocal asked
        for number in range(100):
            asked += 1
            yield [number]

    with Bench(1.0, workers=2, depth=3, plan=plan()) as bench:
        assert asked == 6
        next(bench.epoch)
        assert asked == 7


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_short_epochs(count: int) -> None:
    with Bench(count=count) as bench:
        assert bench.run() == numbers(count)


# -- a batch that is late ---


def slow_at(*ordinals: int, slow_s: float = 200.0, usual_s: float = 1.0) -> Cost:
    return lambda task: slow_s if task.indices[0] in ordinals else usual_s


def test_a_late_batch_does_not_idle_the_other_workers() -> None:
    with Bench(slow_at(20, slow_s=60.0), count=200, workers=4, depth=2) as bench:
        batches = []
        for batch in bench.epoch:
            batches.append(batch)
            if batch == [20]:
                # Three workers had a minute; a fixed window would have let them make seven batches.
                assert len(bench.epoch._ready) > 100
        assert batches == numbers(200)
        assert bench.crew.counters.run_ahead > 50


def test_the_run_ahead_is_bounded() -> None:
    with Bench(slow_at(2, slow_s=100_000.0), count=2000, workers=2, depth=2) as bench:
        assert [next(bench.epoch), next(bench.epoch)] == [[0], [1]]
        assert next(bench.epoch) == [2]
        assert len({task.id for _, task in bench.engine.submitted}) <= 2 + bench.window * _RUN_AHEAD + 2


def test_the_training_loop_is_not_ahead_of_a_late_batch() -> None:
    """While the loop has batches to work on, nobody runs ahead of the window."""
    with Bench(slow_at(5, slow_s=10.0), count=30, workers=2, depth=2) as bench:
        for batch in bench.epoch:
            bench.clock.now_s += 100.0
            assert bench.in_flight() <= bench.window
            del batch
        assert bench.crew.counters.run_ahead == 0


def test_what_a_late_worker_has_waiting_goes_to_an_idle_one() -> None:
    with Bench(slow_at(0, slow_s=500.0), count=8, workers=2, depth=4) as bench:
        assert bench.run() == numbers(8)
        made_by = {task.indices[0]: worker for worker, task in bench.engine.submitted}
        assert made_by[0] == 0
        assert {made_by[number] for number in range(1, 8)} == {1}
        assert bench.crew.counters.relieved == 3


@pytest.mark.parametrize("seed", range(3))
def test_stragglers_cost_little_more_than_their_own_time(seed: int) -> None:
    """One batch in seven takes thirteen times as long; workers that never wait would be the ideal."""
    draw = random.Random(seed)
    table = [0.216 if draw.random() < 0.15 else 0.016 for _ in range(1000)]
    with Bench(lambda task: table[task.indices[0]], count=1000, workers=4, depth=2) as bench:
        begun = bench.clock.now_s
        assert bench.run() == numbers(1000)
        assert bench.clock.now_s - begun < 1.1 * sum(table) / 4


# -- failures ---


def test_a_failure_is_raised_in_its_place_and_iteration_goes_on() -> None:
    with Bench(count=6, fail={(3,): ValueError("three")}, plan=iter([(number,) for number in range(6)])) as bench:
        batches: list[Any] = []
        for _ in range(6):
            try:
                batches.append(next(bench.epoch))
            except ValueError as exc:
                batches.append(str(exc))
        assert batches == [(0,), (1,), (2,), "three", (4,), (5,)]
        assert bench.crew.counters.failures == 1


def test_a_sampler_that_raises_does_so_when_its_batch_would_have_come() -> None:
    def plan() -> Iterator[list[int]]:
        yield [0]
        yield [1]
        raise LookupError("no more shards")

    with Bench(plan=plan(), workers=2, depth=4) as bench:
        assert [next(bench.epoch), next(bench.epoch)] == [[0], [1]]
        with pytest.raises(LookupError, match="no more shards"):
            next(bench.epoch)
        with pytest.raises(StopIteration):
            next(bench.epoch)


def test_indices_that_cannot_be_sent_fail_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(count=5) as bench:
        real = bench.engine.submit

        def submit(worker: int, task: Task) -> None:
            if task.indices == [4]:
                raise TypeError("cannot be sent")
            real(worker, task)

        monkeypatch.setattr(bench.engine, "submit", submit)
        assert [next(bench.epoch) for _ in range(4)] == numbers(4)
        with pytest.raises(TypeError, match="cannot be sent"):
            next(bench.epoch)
        with pytest.raises(StopIteration):
            next(bench.epoch)
        assert all(view.outstanding == 0 for view in bench.crew.workers)


def test_a_death_ends_the_epoch() -> None:
    with Bench(slow_at(3, slow_s=50.0), death=(10.0, 1, WorkerDied("worker 1 is gone"))) as bench:
        assert [next(bench.epoch) for _ in range(3)] == numbers(3)
        with pytest.raises(WorkerDied, match="worker 1"):
            next(bench.epoch)
        assert bench.engine.closed


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerRestarted")
@settings(deadline=None, max_examples=150)
@given(
    table=st.lists(costs, min_size=1, max_size=30),
    deaths=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0, 2.5, 7.0]), st.integers(0, 3)), max_size=3),
    workers=st.integers(1, 4),
    depth=st.integers(1, 4),
    unordered=st.booleans(),
)
def test_workers_that_are_killed_at_any_moment_change_nothing(
    table: list[float], deaths: list[tuple[float, int]], workers: int, depth: int, unordered: bool
) -> None:
    """Up to three times: a fourth, at the same sample, and the sample is taken for the cause."""
    scheduler = Unordered() if unordered else InOrder()
    options: dict[str, Any] = {"count": len(table), "workers": workers, "depth": depth, "scheduler": scheduler}
    with Bench(lambda task: table[task.indices[0]], restarts=3, **options) as bench:
        for after_s, worker in sorted(deaths):
            death = WorkerDied(f"worker {worker} was killed")
            bench.engine.deaths.append((bench.clock.now_s + after_s, worker % workers, death))
        batches = bench.run()
        assert (sorted(batches) if unordered else batches) == numbers(len(table))
        assert bench.crew.counters.restarts == len(bench.engine.replaced) <= len(deaths)
        assert all(view.outstanding == 0 for view in bench.crew.workers)


def test_a_death_within_the_budget_is_a_warning_when_the_next_batch_comes() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(3, slow_s=50.0), restarts=1, death=death, count=6) as bench:
        assert [next(bench.epoch) for _ in range(3)] == numbers(3)
        with pytest.warns(WorkerRestarted, match=r"worker 1 is gone.*batch 3 \(samples 3\).*restart 1 of 1"):
            assert next(bench.epoch) == [3]
        assert bench.run() == [[4], [5]]
        assert not bench.engine.closed


def test_a_warning_that_is_made_an_error_loses_nothing() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(3, slow_s=50.0), restarts=1, death=death, count=6) as bench, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [next(bench.epoch) for _ in range(3)] == numbers(3)
        with pytest.raises(WorkerRestarted):
            next(bench.epoch)
        assert bench.run() == [[3], [4], [5]]


@pytest.mark.parametrize(("known", "expected"), [({}, None), ({1: Resume({"n": 5})}, Resume({"n": 5}))])
def test_a_new_worker_goes_on_where_the_epoch_was_entered(known: dict[int, Resume], expected: Resume | None) -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(1, slow_s=50.0), restarts=1, death=death, count=4, resumes=dict(known)) as bench:
        with pytest.warns(WorkerRestarted):
            assert bench.run() == numbers(4)
        again = [task for worker, task in bench.engine.submitted if worker == 1 and task.indices == [1]]
        assert [task.resume for task in again] == [known.get(1), expected]


class Telling(SteppingEngine):
    """Tells with every batch how many its dataset has made."""

    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes({"made": task.indices[0]})
        return result


def test_a_new_worker_goes_on_with_the_last_state_that_the_old_one_told() -> None:
    death = (10.0, 1, WorkerDied("worker 1 is gone"))
    with Bench(slow_at(5, slow_s=50.0), restarts=1, death=death, count=8, engine=Telling, snapshots=True) as bench:
        with pytest.warns(WorkerRestarted):
            assert bench.run() == numbers(8)
        again = [task for worker, task in bench.engine.submitted if worker == 1 and task.indices == [5]]
        assert [task.resume for task in again][-1] == Resume({"made": 3})


def test_a_stuck_worker_is_replaced_if_that_is_wanted() -> None:
    slow = iter([True])

    def stuck_once(task: Task) -> float:
        return 5000.0 if task.indices == [3] and next(slow, False) else 1.0

    with Bench(stuck_once, timeout_s=30.0, restarts=1, kills_stuck=True, count=8) as bench:
        with pytest.warns(WorkerRestarted, match=r"timed out after 30.0 seconds: worker 1 .* batch 3"):
            assert bench.run() == numbers(8)
        assert bench.engine.replaced == [1]
        assert bench.clock.now_s < 1100


def test_a_worker_that_is_merely_slow_is_not_taken_for_stuck() -> None:
    """It has answered since the training loop began to wait: its deep queue is what takes so long."""
    with Bench(20.0, workers=1, depth=4, timeout_s=30.0, restarts=1, kills_stuck=True, count=8) as bench:
        next(bench.epoch)
        bench.epoch._deadline_s = None
        assert bench.run() == numbers(8)[1:]
        assert bench.engine.replaced == []


def test_without_a_restart_left_a_stuck_worker_is_an_error() -> None:
    cost = slow_at(3, slow_s=5000.0)
    with Bench(cost, timeout_s=30.0, restarts=0, kills_stuck=True) as bench:
        assert [next(bench.epoch) for _ in range(3)] == numbers(3)
        with pytest.raises(WorkerTimeout, match="worker 1"):
            next(bench.epoch)


def test_a_time_out_names_the_worker_and_the_batch() -> None:
    with Bench(slow_at(3, slow_s=5000.0), timeout_s=30.0) as bench:
        assert [next(bench.epoch) for _ in range(3)] == numbers(3)
        before = bench.clock.now_s
        with pytest.raises(WorkerTimeout, match=r"DataLoader timed out after 30.0 seconds: worker 1 .* batch 3"):
            next(bench.epoch)
        assert 30 <= bench.clock.now_s - before < 31, "what the other worker delivers meanwhile changes nothing"


def test_a_time_out_counts_from_the_last_batch() -> None:
    with Bench(20.0, count=10, timeout_s=30.0) as bench:
        assert bench.run() == numbers(10)


def test_a_death_while_the_slots_of_an_epoch_that_was_left_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only slot is that of a task which nobody wants any more, and its worker dies: that is not passed over."""
    clock = Clock()
    for module in (crew_module, map_epoch_module):
        monkeypatch.setattr(module, "time", clock)
    engine = SteppingEngine(1, clock, lambda _: 50.0)
    crew = Crew(engine, Arena(1, shared=False, budget=1 << 20), NumpyFramework(), Counters())
    crew.submit("left", 0, Task(0, [7]), 0)
    crew.abandon("left")
    engine.deaths.append((clock.now_s + 10.0, 0, WorkerDied("worker 0 is gone")))
    epoch = MapEpoch(crew, ForeignPlan(iter(numbers(3))), InOrder(), Limits(2, 2, timeout_s=1000.0), Progress())
    with pytest.raises(WorkerDied, match="worker 0"):
        next(epoch)
    assert engine.closed


def test_an_answer_to_an_epoch_that_was_left_is_no_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only slot comes back with it, long before the time is up; another worker is still at what nobody wants."""
    clock = Clock()
    for module in (crew_module, map_epoch_module):
        monkeypatch.setattr(module, "time", clock)
    engine = SteppingEngine(2, clock, lambda task: 500.0 if task.indices == [8] else 50.0)
    crew = Crew(engine, Arena(1, shared=False, budget=1 << 20), NumpyFramework(), Counters())
    crew.submit("left", 0, Task(0, [7]), 0)
    crew.submit("left", 1, Task(0, [8]), 1)
    crew.abandon("left")
    epoch = MapEpoch(crew, ForeignPlan(iter(numbers(3))), InOrder(), Limits(2, 2, timeout_s=1000.0), Progress())
    assert list(epoch) == numbers(3)


# -- schedulers that misbehave ---


class Odd(InOrder):
    """Does as it should until a subclass does not."""

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


class MovesToNobody(Odd):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 0, 9


class MovesInCircles(Odd):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 0, 0


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (HoldsBack(), r"HoldsBack\(\) holds back batch 3 although every worker is idle"),
        (TakesNone(), r"TakesNone\(\) delivers none of the finished batches"),
        (TakesWrong(), r"TakesWrong\(\) delivers batch 77, which is not among"),
        (NoSuchWorker(), r"NoSuchWorker\(\) chose worker 2, but there are workers 0 to 1"),
        (MovesToNobody(), r"MovesToNobody\(\) gives work of worker 0 to worker 9"),
        (MovesInCircles(), r"MovesInCircles\(\) gives work of worker 0 to worker 0"),
    ],
)
def test_a_scheduler_that_misbehaves_is_told_so(scheduler: Scheduler, message: str) -> None:
    with pytest.raises(BadOption, match=message), Bench(slow_at(0, slow_s=900.0), scheduler=scheduler) as bench:
        bench.run()


class OneAtATime(Scheduler):
    """Holds everything back while anybody works."""

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return None if any(worker.outstanding for worker in workers) else ordinal % len(workers)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return min(ready)


def test_a_scheduler_may_hold_work_back() -> None:
    with Bench(scheduler=OneAtATime(), count=10) as bench:
        assert bench.run() == numbers(10)


# -- leaving ---


def test_what_is_under_way_is_dropped_when_the_epoch_is_left() -> None:
    with Bench(count=40, workers=2, depth=4) as bench:
        next(bench.epoch)
        bench.epoch.close()
        assert bench.crew.collect(100.0) == [], "nobody hears of it"
        assert all(view.outstanding == 0 for view in bench.crew.workers)
        other = MapEpoch(bench.crew, ForeignPlan(iter(numbers(5))), InOrder(), Limits(4, 2), Progress())
        assert list(other) == numbers(5)


def test_an_epoch_may_be_closed_twice() -> None:
    with Bench() as bench:
        bench.epoch.close()
        bench.epoch.close()


# -- resuming ---


@settings(deadline=None, max_examples=100)
@given(
    already=st.sets(st.integers(1, 19), max_size=12),
    table=st.lists(costs, min_size=20, max_size=20),
    workers=st.integers(1, 4),
    depth=st.integers(1, 3),
    unordered=st.booleans(),
)
def test_batches_that_were_delivered_before_do_not_come_again(
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


def test_what_was_delivered_is_noted_as_it_is_delivered() -> None:
    with Bench(slow_at(0, slow_s=50.0), count=6, scheduler=Unordered()) as bench:
        progress = bench.epoch.progress
        assert next(bench.epoch) == [1]
        assert (progress.delivered, progress.early) == (0, {1})
        assert sorted(bench.run()) == [[0], [2], [3], [4], [5]]
        assert (progress.delivered, progress.early) == (6, set())


def test_a_failed_batch_counts_as_delivered() -> None:
    with Bench(count=3, fail={(1,): ValueError("one")}, plan=iter([(number,) for number in range(3)])) as bench:
        next(bench.epoch)
        with pytest.raises(ValueError, match="one"):
            next(bench.epoch)
        assert bench.epoch.progress.delivered == 2


def test_each_worker_is_told_once_where_its_dataset_goes_on() -> None:
    resumes = {0: Resume({"n": 1}), 1: Resume({"n": 2})}
    with Bench(count=6, resumes=dict(resumes), snapshots=True) as bench:
        bench.run()
        told = [(worker, task.resume) for worker, task in bench.engine.submitted if task.resume is not None]
        assert told == list(resumes.items())
        assert all(task.snapshot for _, task in bench.engine.submitted)


def test_workers_go_on_in_turn() -> None:
    with Bench(count=6, workers=3, depth=1, turn=2) as bench:
        assert bench.run() == numbers(6)
        assert [worker for worker, _ in bench.engine.submitted] == [2, 0, 1, 2, 0, 1]


# -- streams that are shared out ---


class Ending(SteppingEngine):
    """Has no batch of this number, and none after it."""

    end = 7

    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        if task.indices.number >= self.end:
            return Result(ResultKind.ENDED, worker, task.id)
        result.payload = task.indices.number
        return result


@settings(deadline=None, max_examples=60)
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
        spans=SpanPlan(StreamSplit(2, Share())),
        engine=Ending,
    ) as bench:
        assert isinstance(bench.engine, Ending)
        bench.engine.end = end
        batches = bench.run()
        assert (sorted(batches) if unordered else batches) == list(range(end))
        assert bench.crew.counters.relieved == 0, "a stream cannot move to another worker"
        with pytest.raises(StopIteration):
            next(bench.epoch)
        assert bench.crew.collect(1000.0) == []


class SplitsItself(SteppingEngine):
    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes(splits_itself=True)
        return result


def test_a_dataset_that_splits_itself_as_well_is_told_of_once() -> None:
    with Bench(count=6, engine=SplitsItself) as bench:
        with pytest.warns(SplitTwice, match="Drop shard=") as told:
            assert bench.run() == numbers(6)
        assert len(told) == 1
