"""Batches of remote samples that a process reads ahead: while it decodes one, the bytes of the next arrive."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from feedline.system.handle import ClosedWhenDeleted

MOST = 8
"""The most batches being read or waiting for their reader; no other is begun until one of these is taken."""
_UNWANTED_S = 60.0
"""A batch that is not requested within this time never will be: another worker has taken over the task. A guess."""
AT_ONCE = 2
"""Batches read at the same time; the requests of each batch also run concurrently."""

_Job = tuple["Future[object]", Callable[[], object]]


def _serve(jobs: queue.SimpleQueue[_Job | None]) -> None:
    """Read batches until there is nothing more to do."""
    while (job := jobs.get()) is not None:
        _read(*job)
        del job  # a thread that waits for the next job must not keep the dataset alive


def _read(future: Future[object], read: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        found = read()
    except (
        BaseException
    ):  # not kept, because it refers to the dataset: the reader of the batch fetches it and gets the error
        found = None
    future.set_result(found)


class Upcoming(ClosedWhenDeleted):
    """The batches being read ahead in this process. Threads may share it.

    Its threads are daemons: a server that does not answer must not keep a program from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[bytes, tuple[float, Future[object]]] = {}
        """When each batch was begun, oldest first, and its future."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._pid = os.getpid()

    def begin(self, key: bytes, read: Callable[[], object], at_once: int = AT_ONCE) -> None:
        """Start reading a batch, unless enough are being read.

        Args:
            key: identifies it.
            read: reads it.
            at_once: batches to read at the same time: more, if each needs few requests.
        """
        now_s = time.monotonic()
        with self._lock:
            while self._begun and next(iter(self._begun.values()))[0] < now_s - _UNWANTED_S:
                self._begun.pop(next(iter(self._begun)))[1].cancel()
            if key in self._begun or len(self._begun) >= MOST:
                return
            self._begun[key] = now_s, Future()
            self._jobs.put((self._begun[key][1], read))
            if self._threads < at_once:
                self._threads += 1
                name = f"feedline-fetch_{self._threads - 1}"
                threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True).start()

    def take(self, key: bytes) -> object | None:
        """Return a batch that was begun, waiting for it; None if it was not, or could not be read."""
        with self._lock:
            begun = self._begun.pop(key, None)
        return None if begun is None or begun[1].cancel() else begun[1].result()

    def close(self) -> None:
        """Forget all batches, and end the threads. Threads that are reading end when they have finished."""
        with self._lock:
            for _, future in self._begun.values():
                future.cancel()
            self._begun.clear()
            for _ in range(self._threads):
                self._jobs.put(None)
            self._threads = 0

    def _needs_closing(self) -> bool:
        return self.__dict__.get("_pid") == os.getpid()
