"""Batches of remote samples that a process reads ahead: while it decodes one, the bytes of the next arrive."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from feedline.system.deletion import ClosedWhenDeleted

_MOST = 8
"""Batches under way or waiting for their reader. While there are as many, no other is begun."""
_UNWANTED_S = 60.0
"""A batch that was not asked for in this time never will be: another worker has taken over the task. A guess."""
_THREADS = 2
"""Batches read at the same time; the requests of each go side by side."""


class Upcoming(ClosedWhenDeleted):
    """The batches under way in this process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[bytes, tuple[float, Future[object]]] = {}
        """When each batch was begun, oldest first, and what comes of it."""
        self._threads = ThreadPoolExecutor(_THREADS, "feedline-fetch")  # they start when there is work
        self._pid = os.getpid()

    def begin(self, key: bytes, read: Callable[[], object]) -> None:
        """Start reading a batch, unless enough are under way. `key` identifies it."""
        now_s = time.monotonic()
        with self._lock:
            while self._begun and next(iter(self._begun.values()))[0] < now_s - _UNWANTED_S:
                self._begun.pop(next(iter(self._begun)))[1].cancel()
            if key not in self._begun and len(self._begun) < _MOST:
                self._begun[key] = now_s, self._threads.submit(read)

    def take(self, key: bytes) -> object | None:
        """Return a batch that was begun, waiting for it; None if it was not, or could not be read."""
        with self._lock:
            begun = self._begun.pop(key, None)
        if begun is None or begun[1].cancel() or begun[1].exception() is not None:
            return None  # the caller reads it, and gets the exception
        return begun[1].result()

    def close(self) -> None:
        """Forget all batches, and end the threads. Those that are reading end after that."""
        with self._lock:
            self._begun.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _needs_closing(self) -> bool:
        return self.__dict__.get("_pid") == os.getpid()
