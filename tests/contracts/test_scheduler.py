"""The suite for schedulers accepts those that keep the contract and fails for those that break it.

The first class is one that a user might write: each worker stays with the shards it has open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from feedline import DataLoader
from feedline.abc import Scheduler, WorkerView
from feedline.schedulers import InOrder
from feedline.testing import SchedulerContract

SHARD_SIZE = 8


class ShardLocal(Scheduler):
    """Prefers a worker that has capacity and read the same shard last."""

    in_order = True

    def open(self, worker_count: int, depth: int) -> None:
        super().open(worker_count, depth)
        self._last: dict[int, int] = {}

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        shard = indices[0] // SHARD_SIZE
        free = [worker for worker in workers if worker.outstanding < self.depth]
        if not free:
            return None
        chosen = next((worker for worker in free if self._last.get(worker.id) == shard), None)
        chosen = chosen or min(free, key=lambda worker: worker.outstanding)
        self._last[chosen.id] = shard
        return chosen.id

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected if expected in ready else None


class TestShardLocal(SchedulerContract):
    def make_scheduler(self) -> Scheduler:
        return ShardLocal()

    def test_a_worker_stays_with_its_shard(self) -> None:
        policy = ShardLocal()
        policy.open(2, 4)
        views = [WorkerView(0), WorkerView(1)]
        chosen = [policy.assign(number, [2 * number], views) for number in range(4)]
        assert len(set(chosen)) == 1


# -- schedulers that break the contract ---


class Broken(InOrder):
    """Keeps the contract; each subclass breaks it in one way."""


class ForgetsABatch(Broken):
    def take(self, ready: Collection[int], expected: int) -> int | None:
        return None if expected == 7 else super().take(ready, expected)


class DeliversWhatIsNotThere(Broken):
    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected


class LiesAboutOrder(Broken):
    def take(self, ready: Collection[int], expected: int) -> int | None:
        return max(ready)


class HoldsBackForGood(Broken):
    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return None if ordinal == 5 else super().assign(ordinal, indices, workers)


class InventsAWorker(Broken):
    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return len(workers)


class GivesToTheBusy(Broken):
    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        return 0, max(workers, key=lambda worker: worker.outstanding).id


class RemembersTheLastEpoch(Broken):
    def __init__(self) -> None:
        self.seen = 0

    def take(self, ready: Collection[int], expected: int) -> int | None:
        self.seen += 1
        return super().take(ready, self.seen - 1)


@pytest.mark.parametrize("broken", Broken.__subclasses__())
def test_schedulers_that_break_the_contract_fail_the_suite(broken: type[Broken]) -> None:
    class Suite(SchedulerContract):
        def make_scheduler(self) -> Scheduler:
            return broken()

    suite = Suite()
    tests = [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]
    failures = 0
    for test in tests:
        try:
            test()
        except AssertionError:
            failures += 1
    assert failures > 0


def test_a_suite_without_a_scheduler_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Override make_scheduler"):
        SchedulerContract().test_every_batch_is_delivered_once()


class Patient(Scheduler):
    """Gives every worker one task at a time; delivers when three batches are ready or no more will come."""

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return next((worker.id for worker in workers if worker.outstanding == 0), None)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return min(ready) if len(ready) >= 3 or expected >= 10 else None


def test_a_held_back_task_is_offered_again_after_an_answer() -> None:
    loader = DataLoader(range(12), 1, num_workers=2, scheduler=Patient())
    assert sorted(int(batch[0]) for batch in loader) == list(range(12))
