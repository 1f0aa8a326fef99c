"""Batches as they finish."""

from __future__ import annotations

from feedline.abc import Scheduler, WorkerView
from feedline.schedulers import Unordered
from feedline.testing import SchedulerContract


class TestUnordered(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        return Unordered()


def opened(worker_count: int, depth: int) -> Unordered:
    policy = Unordered()
    policy.open(worker_count, depth)
    return policy


def test_work_is_dealt_out_in_turns_until_everybody_has_enough() -> None:
    policy = opened(3, 2)
    views = [WorkerView(number) for number in range(3)]
    chosen: list[int] = []
    while (worker := policy.assign(len(chosen), [0], views)) is not None:
        views[worker].outstanding += 1
        chosen.append(worker)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_freed_place_goes_to_the_worker_that_answered() -> None:
    policy = opened(3, 1)
    views = [WorkerView(number, outstanding=1) for number in range(3)]
    assert policy.assign(3, [0], views) is None
    views[2].outstanding = 0
    assert policy.assign(3, [0], views) == 2


def test_what_finished_first_is_delivered_first() -> None:
    policy = opened(2, 1)
    assert not policy.in_order
    ready = {5: "first to finish", 1: "second", 3: "third"}
    assert policy.take(ready, expected=1) == 5
    assert policy.take({}, expected=1) is None


def test_every_epoch_begins_with_the_first_worker() -> None:
    policy = opened(3, 1)
    assert policy.assign(0, [0], [WorkerView(number) for number in range(3)]) == 0
    policy.open(3, 1)
    assert policy.assign(0, [0], [WorkerView(number) for number in range(3)]) == 0
