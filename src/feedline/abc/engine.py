"""The engine contract: workers and their lives."""

from __future__ import annotations

from abc import ABC, abstractmethod

from feedline.types import Result, Task, WorkerSpec


class Engine(ABC):
    """Runs tasks on workers. Every method is called from the consumer's thread.

    The order of calls is `open`, perhaps `submit`, then `start`, then any mix of `submit`, `revoke` and `collect`, and
    at last `close`.
    """

    worker_count: int

    @abstractmethod
    def open(self, spec: WorkerSpec) -> None:
        """Get ready to take tasks."""

    def start(self) -> None:  # noqa: B027  an engine without anything to start has nothing to do
        """Start the workers, if `open` has not. Returns without waiting until they are ready.

        Called after the first tasks were submitted: the first worker is at work while the others are being started.
        """

    @abstractmethod
    def submit(self, worker: int, task: Task) -> None:
        """Put `task` at the end of what `worker` has waiting. Never blocks."""

    @abstractmethod
    def revoke(self, worker: int) -> int | None:
        """Take back the oldest task that `worker` has not begun.

        Returns:
            Its id, or None if there is none. A task that is taken back is never reported.
        """

    @abstractmethod
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        """Wait until something happened, at most `timeout_s` (None: without limit).

        Args:
            timeout_s: the longest wait.
            worker: the worker whose answer is needed next. What the others say may be left for a later call, which
                spares the training loop being woken for batches it cannot deliver yet.

        Returns:
            What happened, in the order in which each worker reported it; empty on time-out.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers and give everything back. May be called twice."""
