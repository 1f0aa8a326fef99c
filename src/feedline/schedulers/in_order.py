"""Batches in order; batch i is made by worker i mod n unless that one is late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from feedline.abc.scheduler import Scheduler, WorkerView

_SURELY_LATE_S = 0.1
"""Below this a pause may be the operating system's doing. Work moves to another worker only when one is surely late,
so that users who look see batch i come from worker i mod n; idle workers run ahead with their own work before that."""


class InOrder(Scheduler):
    """The default scheduler.

    Example:
        >>> policy = InOrder()
        >>> policy.open(worker_count=2, depth=2)
        >>> policy.assign(5, [0, 1], [WorkerView(0), WorkerView(1)])
        1
        >>> policy.take({4, 6}, expected=5) is None
        True
    """

    in_order = True

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return ordinal % len(workers)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected if expected in ready else None

    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        idle = next((worker for worker in workers if worker.outstanding == 0), None)
        if idle is None:
            return None
        late_since = now_s - max(_SURELY_LATE_S, 4 * typical_s)
        # Also one that has a single task: it may not have begun it, if it was stopped or does not come to run.
        late = [worker for worker in workers if worker.outstanding and worker.since_s < late_since]
        if not late:
            return None
        return min(late, key=_since).id, idle.id


class LeastLoaded(InOrder):
    """Batches in order; each is made by the worker that has least to do, and is held back until one has a place.

    A worker that is slow with one batch then gets no more, where `InOrder` has given it its share of all that is
    prefetched. Who makes a batch depends on how long others take: give the loader a `seed` if samples draw random
    numbers. Goes through all workers for a batch, so it is not for thousands of them in one loader.

    Example:
        >>> policy = LeastLoaded()
        >>> policy.assign(4, [0, 1], [WorkerView(0, outstanding=2), WorkerView(1, outstanding=1)])
        1
        >>> policy.assign(5, [0, 1], [WorkerView(0, outstanding=2), WorkerView(1, outstanding=2)]) is None
        True
    """

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        own = workers[ordinal % len(workers)]
        least = own if not own.outstanding else min(workers, key=_load)
        chosen = own if own.outstanding == least.outstanding else least
        return chosen.id if chosen.outstanding < _PLACES else None


_PLACES = 2
"""Tasks that a worker has at most with `LeastLoaded`: one at work, one that follows without a pause."""


def _load(worker: WorkerView) -> int:
    return worker.outstanding


def _since(worker: WorkerView) -> float:
    return worker.since_s
