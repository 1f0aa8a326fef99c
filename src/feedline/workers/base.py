"""What engines share: ownership of workers, and closing."""

from __future__ import annotations

import os
from abc import abstractmethod

from feedline.abc.engine import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.system import interrupts


class WorkerEngine(Engine):
    """An engine whose workers belong to the process that made it."""

    def __init__(self, worker_count: int) -> None:
        self.worker_count = worker_count
        self._spec: WorkerSpec | None = None
        self._owner_pid = os.getpid()
        self._closed = False

    @interrupts.put_off(starts_process=False)  # an interrupted close would leave workers and their files behind
    def close(self) -> None:
        is_first, self._closed = not self._closed, True
        if is_first and os.getpid() == self._owner_pid:  # in a fork of the trainer, the workers are the parent's
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Do the work of `close`, once."""

    def _drop_tasks(self, worker: int) -> None:
        """Take back all tasks that a worker has not begun."""
        while self.revoke(worker) is not None:
            continue
