"""Batches as they finish."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from feedline.abc.scheduler import Scheduler, WorkerView


class Unordered(Scheduler):
    """Delivers whatever is ready; a freed place goes to the worker that answered (torch's `in_order=False`).

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

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        for step in range(len(workers)):
            worker = workers[(self._turn + step) % len(workers)]
            if worker.outstanding < self.depth:
                self._turn = worker.id + 1
                return worker.id
        return None

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return next(iter(ready), None)
