"""The engine contract: workers and their lifecycle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from feedline.errors import WorkerStartError
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

    def submit_together(self, worker: int, tasks: list[Task]) -> None:
        """Put short tasks at the end of what `worker` has waiting, as one message. Never blocks.

        A worker that has read the message has begun all of them, as far as `revoke` is concerned. It answers each as
        soon as that is done.

        Raises:
            NotImplementedError: this engine sends tasks one by one.
            Exception: one of them cannot be sent. In both cases none was; give them to `submit` one by one.
        """
        raise NotImplementedError

    @abstractmethod
    def revoke(self, worker: int) -> int | None:
        """Take back the oldest task that `worker` has not begun.

        Returns:
            Its id, or None if there is none. A task that is taken back is never reported.
        """

    def forget(self, worker: int) -> None:  # noqa: B027  an engine that gives out one task at a time has nothing to do
        """Nobody wants what `worker` has been given so far. Tasks that it has read and not begun it answers at once."""

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

    def replace(self, worker: int) -> None:
        """Start another worker in the place of one that died, was retired, or that has nothing to do and is to go.

        Nothing that was given to the old one is known to the new one, and nothing of it is reported any more. A number
        that is one more than there were so far adds a worker.

        Raises:
            WorkerStartError: it cannot be started, or this engine never replaces workers. If there was none of this
                number, the others go on.
        """
        raise WorkerStartError(f"{type(self).__name__} cannot start another worker in the place of worker {worker}.")

    def retire(self, worker: int) -> None:  # noqa: B027  an engine that never replaces workers is never asked to
        """End a worker that has nothing to do, and give back what it had. The others do not notice."""

    def kill(self, worker: int) -> bool:
        """End a worker that does not answer, whatever it is doing; `collect` then reports its death.

        Returns:
            False if that cannot be done: a thread cannot be ended from outside.
        """
        return False

    def placed_s(self, worker: int) -> float:
        """Return since when a worker has a place to run, by `time.monotonic`; `math.inf` if it has none yet.

        It has no time-out before that; the engine itself says if it takes too long.
        """
        return 0.0

    def stack(self, worker: int) -> str | None:
        """Return what a worker is doing, as the text of its Python stacks; None if it cannot be had. May take 1 s."""
        return None

    def pid(self, worker: int) -> int | None:
        """Return the process id of a worker; None if it is not a process of its own."""
        return None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, also of one that died and was not replaced yet; none if they are threads."""
        return []

    # Any: a process of multiprocessing's, or a thread.
    @property
    def worker_objects(self) -> list[Any]:
        """The workers as Python knows them, by number: processes or threads. Empty if they are neither, or elsewhere.

        They answer `is_alive`, `join` and, if they are processes, `pid` and `exitcode`; also when they have ended, and
        after `close`.
        """
        return []

    def has_room(self) -> bool:
        """False while batches take all the memory that they may, if that is not the arena's. Asked for every task."""
        return True

    @abstractmethod
    def close(self) -> None:
        """End all workers and give everything back. May be called twice."""
