"""Batches of remote samples that a process reads ahead: while it decodes one, the bytes of the next arrive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from feedline.system.deletion import ClosedWhenDeleted

_MOST = 4
"""Batches that are kept. Those of tasks that another worker has taken over are never asked for, and go first."""
_THREADS = 2
"""Batches read at the same time; the requests of each go side by side."""


class Upcoming(ClosedWhenDeleted):
    """The batches under way in this process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[bytes, Future[object]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "feedline-fetch")  # they start when there is work
        self._pid = os.getpid()

    def begin(self, key: bytes, read: Callable[[], object]) -> None:
        """Start reading a batch. `key` identifies it."""
        with self._lock:
            if key in self._begun:
                return
            self._begun[key] = self._threads.submit(read)
            while len(self._begun) > _MOST:
                self._begun.pop(next(iter(self._begun))).cancel()

    def take(self, key: bytes) -> object | None:
        """Return a batch that was begun, waiting for it; None if it was not, or could not be read."""
        with self._lock:
            future = self._begun.pop(key, None)
        if future is None or future.cancel() or future.exception() is not None:
            return None  # the caller reads it, and gets the exception
        return future.result()

    def close(self) -> None:
        """Forget all batches, and end the threads. Those that are reading end after that."""
        with self._lock:
            self._begun.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _needs_closing(self) -> bool:
        return self.__dict__.get("_pid") == os.getpid()
