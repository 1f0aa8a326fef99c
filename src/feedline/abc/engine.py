"""The engine contract: workers and their lifecycle."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import WorkerStartError
from feedline.types import Result, Task


class Engine(ABC):
    """Runs tasks on workers. Every method is called from the consumer's thread.

    The order of calls is `open`, optionally `submit`, then `start`, then any mix of `submit`, `revoke` and `collect`,
    and finally `close`.

    Example:
        >>> from feedline.abc import Engine
        >>> sorted(Engine.__abstractmethods__)  # what an engine of your own must have
        ['close', 'collect', 'open', 'revoke', 'submit']
    """

    worker_count: int

    @abstractmethod
    def open(self, spec: WorkerSpec) -> None:
        """Prepare to accept tasks."""

    def start(self) -> None:  # noqa: B027  an engine without anything to start has nothing to do
        """Start the workers, if `open` has not. Does not wait until they are ready.

        Called after the first tasks were submitted: the first worker works while the others are starting.
        """

    @abstractmethod
    def submit(self, worker: int, task: Task) -> None:
        """Append `task` to the queue of `worker`. Never blocks."""

    def submit_together(self, worker: int, tasks: list[Task]) -> None:
        """Append short tasks to the queue of `worker`, as one message. Never blocks.

        A worker that has read the message counts as having started all of them, so `revoke` cannot take them back. The
        worker answers each task as soon as it is done.

        Raises:
            NotImplementedError: this engine sends tasks one by one.
            Exception: one of them cannot be sent. In both cases none was sent; pass them to `submit` one by one.
        """
        raise NotImplementedError

    @abstractmethod
    def revoke(self, worker: int) -> int | None:
        """Take back the oldest task that `worker` has not started.

        Returns:
            The task's id, or None if there is no such task. A task that was taken back is never reported.
        """

    @abstractmethod
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        """Wait for results, at most `timeout_s` (None: no limit).

        Args:
            timeout_s: the longest wait.
            worker: the worker whose answer is needed next. Results of other workers may be left for a later call, which
                avoids waking the training loop for batches it cannot deliver yet.

        Returns:
            The results, in the order in which each worker reported them; empty on timeout.
        """

    def replace(self, worker: int) -> None:
        """Start another worker in place of one that died, was retired, or is idle and should end.

        The new worker knows nothing about the old one's tasks, and the engine no longer reports them. A number one
        higher than any so far adds a worker.

        Raises:
            WorkerStartError: the worker cannot be started, or this engine never replaces workers. If no worker had this
                number, the others continue.
        """
        raise WorkerStartError(f"{type(self).__name__} cannot start another worker in place of worker {worker}.")

    def retire(self, worker: int) -> None:  # noqa: B027  an engine that never replaces workers is never asked to
        """End an idle worker and release its resources. The others are not affected."""

    def kill(self, worker: int) -> bool:
        """End a worker that does not respond; `collect` then reports its death.

        Returns:
            False if that is impossible: a thread cannot be ended from outside.
        """
        return False

    def alive_s(self, worker: int) -> float:
        """Return when a worker last showed a sign of life other than an answer, by `time.monotonic`; 0.0 if it did not.

        Its timeout then starts anew. A worker that resumes a stream shows that it is reading the samples before its
        task. One on a cluster shows when it was placed: `math.inf` until then; the engine reports if that takes long.
        """
        return 0.0

    def stack(self, worker: int) -> str | None:
        """Return the Python stacks of a worker as text; None if not available. May take 1 s."""
        return None

    def pid(self, worker: int) -> int | None:
        """Return the process id of a worker; None if it is not a process of its own."""
        return None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, including one that died and was not replaced yet; empty if they are threads."""
        return []

    # Any: a multiprocessing process, or a thread.
    @property
    def worker_objects(self) -> list[Any]:
        """The workers as Python objects, by number: processes or threads. Empty if they are neither, or run elsewhere.

        They support `is_alive`, `join` and, for processes, `pid` and `exitcode`, even after they have ended and after
        `close`.
        """
        return []

    def capacity(self) -> int:
        """Return how many tasks may be in flight, if their batches take memory that this engine limits itself."""
        return sys.maxsize

    @abstractmethod
    def close(self) -> None:
        """End all workers and release everything. May be called twice."""
