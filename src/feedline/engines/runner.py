"""What every worker does with a task, in whatever engine it lives."""

from __future__ import annotations

import time
from typing import Any

from feedline import memory
from feedline.fetch import Fetcher, fetcher_for
from feedline.types import DatasetKind, Result, ResultKind, Task, WorkerIdentity, WorkerSpec


class Runner:
    """One worker's dataset, fetcher and epoch.

    Args:
        spec: what all workers share.
        worker: who this one is; None for the training process itself (no worker at all).

    An exception while setting up (the user's `worker_init_fn`, `iter(dataset)`) is kept and raised by the first task,
    where it reaches the training loop; the tasks after it raise it again.
    """

    def __init__(self, spec: WorkerSpec, worker: WorkerIdentity | None) -> None:
        self._spec = spec
        self.streams = spec.kind is DatasetKind.ITERABLE
        self._dataset = spec.dataset
        self.fetch: Fetcher | None = None
        self._epoch = 0
        self._opened = False
        self.trouble: Exception | None = None
        try:
            if worker is not None:
                self._dataset = spec.framework.open_worker(worker, spec)
                if spec.init is not None:
                    spec.init(worker.id)
            self._opened = True
            self.fetch = fetcher_for(self._dataset, spec)
        except Exception as exc:
            self.trouble = exc

    def attempt(self, task: Task, worker: int, room: memory.Memory | None) -> Result:
        """Run a task and report on it: DONE with the batch, FAILED with the exception, ENDED."""
        begun = time.perf_counter_ns()
        try:
            batch = self.run(task, room)
        except StopIteration as exc:
            if self.streams:
                return Result(ResultKind.ENDED, worker, task.id)
            return Result(ResultKind.FAILED, worker, task.id, exc)
        except Exception as exc:
            return Result(ResultKind.FAILED, worker, task.id, exc)
        return Result(ResultKind.DONE, worker, task.id, batch, time.perf_counter_ns() - begun)

    def run(self, task: Task, room: memory.Memory | None) -> Any:
        """Make the batch, if possible in `room`; raises StopIteration at the end of a stream."""
        if task.epoch != self._epoch:
            self._begin_epoch(task)
        if self.trouble is not None:
            raise self.trouble
        assert self.fetch is not None
        memory.set_current(room)
        try:
            return self.fetch(task.indices)
        finally:
            memory.set_current(None)

    def _begin_epoch(self, task: Task) -> None:
        self._epoch = task.epoch
        if self.fetch is None and not self._opened:
            return  # it never got ready, and says so with every task
        self.fetch = None
        self.trouble = None
        try:
            self._dataset = self._spec.framework.reset_worker(self._dataset, self._spec, task.shared_seed)
            self.fetch = fetcher_for(self._dataset, self._spec)
        except Exception as exc:
            self.trouble = exc
