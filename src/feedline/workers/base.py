"""What engines share: ownership of workers, closing, and lanes of waiting tasks."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from feedline.abc.engine import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.system import interrupts
from feedline.system.mailbox import Mailbox
from feedline.types import Result


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


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


Waiting = TypeVar("Waiting", bound=_Numbered)
Lane = queue.SimpleQueue["Waiting | None"]
"""Tasks waiting for a worker; None ends the worker."""


class LaneEngine(WorkerEngine, Generic[Waiting]):
    """Each worker has a lane of waiting tasks; all answer into one queue.

    `queue.SimpleQueue` is atomic with and without the GIL: a task goes to the worker or is taken back, never both.
    """

    def __init__(self, worker_count: int) -> None:
        super().__init__(worker_count)
        self._lanes: list[Lane[Waiting]] = [queue.SimpleQueue() for _ in range(worker_count)]
        self._answers: Mailbox[Result] = Mailbox()
        self._alive_s: dict[int, float] = {}
        """When workers last reported that they are alive."""

    def alive_s(self, worker: int) -> float:
        return self._alive_s.get(worker, 0.0)

    def _note_alive(self, worker: int) -> None:
        self._alive_s[worker] = time.monotonic()

    def _end_lane(self, worker: int) -> None:
        """Let an idle worker end, if it still exists, and create a lane for its successor."""
        self._lanes[worker].put(None)
        self._lanes[worker] = queue.SimpleQueue()

    def revoke(self, worker: int) -> int | None:
        with contextlib.suppress(queue.Empty):
            waiting = self._lanes[worker].get_nowait()
            return None if waiting is None else waiting.id
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return self._answers.collect(timeout_s)

    def _end_lanes(self) -> None:
        for worker, lane in enumerate(self._lanes):
            self._drop_tasks(worker)
            lane.put(None)
