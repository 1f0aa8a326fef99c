"""The scheduler contract: which worker gets which task, and which finished batch comes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class WorkerView:
    """What a scheduler knows about one worker.

    Example:
        >>> from feedline.abc import WorkerView
        >>> workers = [WorkerView(0, outstanding=2), WorkerView(1)]
        >>> [worker.id for worker in workers if not worker.outstanding]
        [1]
    """

    id: int
    outstanding: int = 0
    """Tasks assigned to it and not yet answered: one running, the others queued."""
    since_s: float = 0.0
    """When it started its current task, on the clock that `relieve` gets."""


class Scheduler(ABC):
    """Decides; never waits, never touches a worker. Called from the consumer's thread only.

    With `num_workers="auto"` the number of workers changes during an epoch: use the list that each call gets.
    Subclass it and override what you need. The loader calls `open` at the start of every epoch, `assign` for
    every task, `take` for every batch, and `relieve` only while the training loop is waiting.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import Scheduler
        >>> class FirstWorkerOnly(Scheduler):
        ...     def assign(self, ordinal, indices, workers):
        ...         return 0 if workers[0].outstanding < self.depth else None
        ...     def take(self, ready, expected):
        ...         return expected if expected in ready else None
        >>> loader = Loader(list(range(4)), 2, workers=2, engine="thread", scheduler=FirstWorkerOnly())
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3]]
    """

    in_order: bool = False
    """True if `take` only ever returns `expected`: the loader then waits for that batch alone."""

    depth: int = 1
    """Tasks a worker may have at once (torch's `prefetch_factor`)."""

    def open(self, worker_count: int, depth: int) -> None:
        """Start an epoch."""
        self.depth = max(1, depth)

    @abstractmethod
    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        """Choose the worker for the task, or None to hold the task back until a worker answers."""

    @abstractmethod
    def take(self, ready: Collection[int], expected: int) -> int | None:
        """Choose the finished batch to deliver; `expected` is the lowest ordinal not yet delivered.

        Returns:
            One of `ready`, or None to wait for more.
        """

    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        """Choose a queued task to move to another worker, while the training loop waits.

        Called only with `seed=`, where a batch does not depend on its worker, or on threads, which share one dataset.

        Args:
            workers: all except those known to have started all their tasks, and idle ones that seem to be stopped; at
                least one of them is idle.
            now_s: the current time, on the clock of `WorkerView.since_s`.
            typical_s: the median time of recent tasks.

        Returns:
            (from, to), or None to move nothing. The first must have work, and the second none.
        """
        return None
