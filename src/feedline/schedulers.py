"""The schedulers: batches in order, or as they finish. Decisions without side effects."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from feedline.abc.scheduler import Scheduler, WorkerView

__all__ = ["InOrder", "LeastLoaded", "Unordered"]

_SURELY_LATE_S = 0.1
"""A worker that is silent for this long is surely late, and its work may move to another. A shorter pause may be due to
the operating system; meanwhile idle workers run ahead with their own work.
"""

_PLACES = 2
"""Maximum number of tasks of a worker with `LeastLoaded`: one in progress, one that follows without a pause."""


class InOrder(Scheduler):
    """The default scheduler: batch i is made by worker i mod n.

    With `seed=`, where a batch does not depend on the worker that makes it, and on threads, which share one dataset, an
    idle worker takes over tasks that a late one has not begun.

    Example:
        >>> policy = InOrder()
        >>> policy.open(worker_count=2, depth=2)
        >>> policy.assign(5, [0, 1], [WorkerView(0), WorkerView(1)])
        1
        >>> policy.take({4, 6}, expected=5) is None
        True
    """

    in_order = True

    def assign(self, ordinal: int, indices: object, workers: Sequence[WorkerView]) -> int | None:
        return ordinal % len(workers)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected if expected in ready else None

    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        idle = next((worker for worker in workers if worker.outstanding == 0), None)
        if idle is None:
            return None
        late_since = now_s - max(_SURELY_LATE_S, 4 * typical_s)
        # Also a worker with a single task: it may not have begun it, if it was stopped or does not get to run.
        late = [worker for worker in workers if worker.outstanding and worker.since_s < late_since]
        if not late:
            return None
        return min(late, key=lambda worker: worker.since_s).id, idle.id


class LeastLoaded(InOrder):
    """Batches in order; each goes to the worker with the fewest tasks, and is held back until one has space for it.

    A worker that is slow with one batch then gets no more, whereas `InOrder` would have given it its share of all
    prefetched batches. The worker that makes a batch depends on how long others take: give the loader a `seed` if
    samples draw random numbers. It examines all workers for each batch, so it does not suit thousands of workers.

    Example:
        >>> policy = LeastLoaded()
        >>> policy.assign(4, [0, 1], [WorkerView(0, outstanding=2), WorkerView(1, outstanding=1)])
        1
        >>> policy.assign(5, [0, 1], [WorkerView(0, outstanding=2), WorkerView(1, outstanding=2)]) is None
        True
    """

    def assign(self, ordinal: int, indices: object, workers: Sequence[WorkerView]) -> int | None:
        own = workers[ordinal % len(workers)]
        least = own if not own.outstanding else min(workers, key=lambda worker: worker.outstanding)
        chosen = own if own.outstanding == least.outstanding else least
        return chosen.id if chosen.outstanding < _PLACES else None


class Unordered(Scheduler):
    """Delivers batches as they finish; a worker that finished one gets the next task (torch's `in_order=False`).

    Example:
        >>> policy = Unordered()
        >>> policy.open(worker_count=2, depth=1)
        >>> policy.assign(0, [0], [WorkerView(0, outstanding=1), WorkerView(1)])
        1
        >>> policy.take([4, 2], expected=1)
        4
    """

    _turn = 0

    def open(self, worker_count: int, depth: int) -> None:
        super().open(worker_count, depth)
        self._turn = 0

    def assign(self, ordinal: int, indices: object, workers: Sequence[WorkerView]) -> int | None:
        for step in range(len(workers)):
            worker = workers[(self._turn + step) % len(workers)]
            if worker.outstanding < self.depth:
                self._turn = worker.id + 1
                return worker.id
        return None

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return next(iter(ready), None)


def __dir__() -> list[str]:
    return __all__
