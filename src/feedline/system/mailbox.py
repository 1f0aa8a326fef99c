"""A queue for results that many threads put in and one thread takes out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Holds items that other threads put in until one thread collects them.

    `queue.SimpleQueue` alone would not work. Before Python 3.13, `SimpleQueue.get(timeout=...)` ignores its timeout if
    a signal arrives while it waits and the timeout has passed once the signal is handled: it then waits until an item
    comes, which may be never. A lock does not have that bug, so the consumer waits for a lock, and `put` releases it.
    Test: tests/system/test_mailbox.py::test_a_signal_does_not_extend_the_wait
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._has_new = threading.Lock()
        """Unlocked if something may have been put in since the last `collect`."""
        self._has_new.acquire()

    def put(self, item: T) -> None:
        """Add an item. Never blocks; any thread may call it."""
        self._items.put(item)
        self._notify()

    # object: the arguments of `make`.
    def put_result(self, make: Callable[..., T], *arguments: object) -> None:
        """Call `make` and add its result, to which this thread keeps no reference once it can be collected."""
        self._items.put(make(*arguments))
        self._notify()

    def _notify(self) -> None:
        # Two threads may release at once: one of them gets the exception, with and without the GIL.
        try:
            self._has_new.release()
        except RuntimeError:  # it is unlocked already
            return

    def collect(self, timeout_s: float | None) -> list[T]:
        """Wait up to `timeout_s` for an item (None: without limit), and return all items.

        The list may be empty before the time is over: an earlier call may have taken the item that ended the wait.
        """
        if self._items.empty():
            self._has_new.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        else:  # an earlier call may have been interrupted between the two steps
            self._has_new.acquire(blocking=False)
        return [self._items.get_nowait() for _ in range(self._items.qsize())]
