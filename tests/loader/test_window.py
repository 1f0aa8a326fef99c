"""The batches of a plan that are under way, on an engine and a clock that tests move by hand."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.abc import Scheduler, WorkerView
from feedline.errors import WorkerDied, WorkerRestarted
from feedline.loader import window
from feedline.loader.limits import Limits
from feedline.loader.map_epoch import MapEpoch
from feedline.state.progress import Progress
from feedline.loader.window import _RUN_AHEAD
from feedline.plan.foreign import ForeignPlan
from feedline.policies import InOrder, Unordered
from feedline.types import Notes, Result, Resume, Task
from tests.loader.epochs import Bench, numbers, slow_at
from tests.loader.stepping import SteppingEngine

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


def test_a_late_batch_does_not_idle_the_other_workers() -> None:
    with Bench(slow_at(20, slow_s=60.0), count=200, workers=4, depth=2) as bench:
        batches = []
        for batch in bench.epoch:
            batches.append(batch)
            if batch == [20]:
                # Three workers had a minute; a fixed window would have let them make seven batches.
                assert len(bench.epoch._window.ready) > 100
        assert batches == numbers(200)
        assert bench.crew.counters.run_ahead > 50


def test_the_run_ahead_is_bounded() -> None:
    with Bench(slow_at(2, slow_s=500.0), count=2000, workers=2, depth=2) as bench:
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


class OneAtATime(Scheduler):
    """Holds everything back while anybody works."""

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return None if any(worker.outstanding for worker in workers) else ordinal % len(workers)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return min(ready)


def test_a_scheduler_may_hold_work_back() -> None:
    with Bench(scheduler=OneAtATime(), count=10) as bench:
        assert bench.run() == numbers(10)


def test_what_is_under_way_is_dropped_when_the_epoch_is_left() -> None:
    with Bench(count=40, workers=2, depth=4) as bench:
        next(bench.epoch)
        bench.epoch.close()
        while any(view.outstanding for view in bench.crew.workers):
            assert bench.crew.collect(100.0) == [], "nobody hears of it"
        other = MapEpoch(bench.crew, ForeignPlan(iter(numbers(5))), InOrder(), Limits(4, 2), Progress())
        assert list(other) == numbers(5)


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


class OwnSampler:
    """Yields lists, as samplers that people write do."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(2000))

    def __len__(self) -> int:
        return 2000


@pytest.mark.parametrize(
    ("options", "width", "deep"),
    [
        pytest.param({"shuffle": True}, 16, 16, id="small"),
        pytest.param({}, 250, 12, id="what fits messages"),
        pytest.param({}, 1000, 2, id="large batches"),
        pytest.param({"prefetch_factor": 3}, 16, 3, id="depth given"),
        pytest.param({"sampler": OwnSampler()}, 16, 2, id="own sampler"),
        pytest.param({"shuffle": True, "generator": torch.Generator()}, 16, 2, id="generator of the user's"),
        pytest.param({"shuffle": True, "seed": 1}, 16, 16, id="seed"),
        pytest.param({"in_order": False}, 16, 2, id="unordered"),
        pytest.param({"engine": "thread"}, 16, 2, id="threads"),
    ],
)
def test_small_batches_that_take_no_time_are_fetched_further_ahead(
    options: dict[str, Any], width: int, deep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_SHORT_S", 10.0)  # whatever else this machine is doing
    dataset = torch.utils.data.TensorDataset(torch.zeros(2000, width))
    batches: Any = iter(feedline.DataLoader(dataset, 8, num_workers=2, **options))
    for _ in range(100):
        next(batches)
    assert batches._batches._epoch._window._size == 2 * deep
    assert len(list(batches)) == 150


def test_batches_that_take_their_time_are_not_fetched_further_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_SHORT_S", 0.0)
    batches: Any = iter(feedline.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2000, 4)), 8, num_workers=2))
    for _ in range(100):
        next(batches)
    assert batches._batches._epoch._window._size == 4
