"""One pass over a plan, with an engine and a clock that tests control."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from feedline.abc import Scheduler, WorkerView
from feedline.errors import BadOption
from feedline.schedulers import InOrder
from tests.delivery.stepping import Bench, numbers, slow_at

# -- failures ---


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


def test_a_resumed_epoch_starts_with_the_worker_whose_turn_it_was() -> None:
    with Bench(count=6, workers=3, depth=1, turn=2) as bench:
        assert bench.run() == numbers(6)
        assert [worker for worker, _ in bench.engine.submitted] == [2, 0, 1, 2, 0, 1]
