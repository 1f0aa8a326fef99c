"""Batches in order; batch i is made by worker i mod n unless that one is late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from feedline.abc.scheduler import Scheduler, WorkerView


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

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        preferred = workers[ordinal % len(workers)]
        if preferred.outstanding < self.depth:
            return preferred.id
        least = min(workers, key=_outstanding)
        return least.id if least.outstanding < self.depth else None

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected if expected in ready else None

    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        idle = next((worker for worker in workers if worker.outstanding == 0), None)
        if idle is None:
            return None
        late_since = now_s - self.grace_s(typical_s)
        late = [worker for worker in workers if worker.outstanding > 1 and worker.since_s < late_since]
        if not late:
            return None
        return min(late, key=_since).id, idle.id


def _outstanding(worker: WorkerView) -> int:
    return worker.outstanding


def _since(worker: WorkerView) -> float:
    return worker.since_s
