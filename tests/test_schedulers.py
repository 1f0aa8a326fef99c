"""Batches in order, and batches as they finish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.abc import Scheduler, WorkerView
from feedline.schedulers import InOrder, LeastLoaded, Unordered
from feedline.testing import SchedulerContract
from tests.delivery.stepping import Bench


class TestInOrder(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        return InOrder()


def workers(*outstanding: int, since_s: float = 0.0) -> list[WorkerView]:
    return [WorkerView(number, count, since_s) for number, count in enumerate(outstanding)]


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_batch_i_goes_to_worker_i_mod_n_whatever_their_load(ordinal: int, count: int) -> None:
    policy = InOrder()
    policy.open(count, 2)
    assert policy.assign(ordinal, [1], workers(*range(count))) == ordinal % count


def test_no_task_moves_unless_one_worker_is_idle_and_another_late() -> None:
    policy = InOrder()
    assert policy.relieve(workers(5, 1), now_s=100, typical_s=0.01) is None, "no worker is idle"
    assert policy.relieve(workers(5, 0, since_s=99.95), now_s=100, typical_s=0.01) is None, "no worker is late yet"
    assert policy.relieve(workers(5, 0, since_s=96.5), now_s=100, typical_s=1.0) is None, "tasks take a second"


def test_a_single_task_is_moved_from_a_late_worker() -> None:
    """Whether its worker has started it shows only in the attempt."""
    assert InOrder().relieve(workers(1, 0), now_s=100, typical_s=0.01) == (0, 1)


def test_tasks_move_from_the_worker_that_is_late_the_longest_to_an_idle_one() -> None:
    policy = InOrder()
    views = [WorkerView(0, 3, 50.0), WorkerView(1, 0, 99.0), WorkerView(2, 3, 40.0), WorkerView(3, 0, 1.0)]
    assert policy.relieve(views, now_s=100, typical_s=0.01) == (2, 1)


def test_with_equal_work_nothing_moves() -> None:
    with Bench(1.0, count=30, workers=3) as bench:
        bench.run()
    assert [worker for worker, _ in bench.engine.submitted] == [number % 3 for number in range(30)]
    assert bench.counters.relieved == 0


class TestLeastLoaded(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        return LeastLoaded()


@given(st.integers(0, 10**9), st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_the_least_loaded_worker_gets_the_next_batch(ordinal: int, loads: list[int]) -> None:
    chosen = LeastLoaded().assign(ordinal, [1], workers(*loads))
    least = min(loads)
    assert (chosen is None) == (least >= 2)
    if chosen is not None:
        assert loads[chosen] == least
        assert chosen == ordinal % len(loads) or loads[ordinal % len(loads)] > least


class TestUnordered(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        return Unordered()


def opened(worker_count: int, depth: int) -> Unordered:
    policy = Unordered()
    policy.open(worker_count, depth)
    return policy


def test_tasks_are_assigned_in_turn_until_every_worker_is_full() -> None:
    policy = opened(3, 2)
    views = [WorkerView(number) for number in range(3)]
    chosen: list[int] = []
    while (worker := policy.assign(len(chosen), [0], views)) is not None:
        views[worker].outstanding += 1
        chosen.append(worker)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_the_next_task_goes_to_the_worker_that_answered() -> None:
    policy = opened(3, 1)
    views = [WorkerView(number, outstanding=1) for number in range(3)]
    assert policy.assign(3, [0], views) is None
    views[2].outstanding = 0
    assert policy.assign(3, [0], views) == 2


def test_the_first_finished_batch_is_delivered_first() -> None:
    policy = opened(2, 1)
    assert not policy.in_order
    ready = {5: "first to finish", 1: "second", 3: "third"}
    assert policy.take(ready, expected=1) == 5
    assert policy.take({}, expected=1) is None
