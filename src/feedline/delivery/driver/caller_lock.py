"""One caller at a time, and what an interrupt may interrupt.

**Callers.** Several threads may request batches from one iterator, and any of them may close it. The thread that makes
a batch holds the caller lock, and other threads wait for it. A thread that already holds it cannot wait for itself, so
its call is refused: a dataset that iterates over its own loader, or a signal handler that requests a batch. Any thread
may call `close` at any time, also a signal handler on top of `next`: it sets a flag, and the thread that holds the lock
sees the flag and leaves.

**Interrupts.** Python runs signal handlers in the main thread: when a function begins, when one that is written in C
returns, and when a loop starts over. What a handler raises there (Ctrl-C, a timeout, an exception of any class) says
nothing about the code that it interrupts. `is_interrupt` recognises it wherever an exception is treated as an answer:
as that of a sample, a target, or a task that cannot be sent. An interrupted `next` does what it does in torch:

- Without workers, the next call makes the next batch. With a device, it delivers the next one.
- With workers, the iteration is over: it is unknown which worker has which batch (`WorkerBatches._is_torn`). Each
  further call raises the error of `ended_by`, which says how to continue.
- `state_dict()` counts a batch only if `next` has returned it. So resuming from the state loses and repeats none.

The last rule needs one moment at which a batch is delivered: the assignment at the end of `Kind.note` (with workers),
of `InlineBatches._note`, or of `DeviceBatches._next`. From there to the return of `__next__`, nothing is called and
nothing loops, so no handler runs: not `next(batches)` but `batches.__next__()`, after which Python does not look for
signals; the end of an epoch is an assignment in an `except` clause. The owner of the lock is cleared the same way, in
a `finally` that was entered before it was set, and only if the owner is that call, so an interrupt anywhere leaves the
lock free. (Python 3.10 also runs handlers when a function returns and where an exception is caught. There an interrupt
at that moment loses the batch, or leaves the lock taken for good.)

What must not be interrupted half-way, which is starting workers, closing, and finalizers, delays signals instead:
`system/interrupts.py`.

Test: tests/faults/test_shared_iterator.py, tests/faults/test_storm.py
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from feedline.errors import ReentrantCall
from feedline.order.progress import Progress
from feedline.system.references import References

_PATIENCE_S = 5.0
"""How long `close` waits for another thread that is running the user's own code, such as a sampler. When that code
returns, the thread closes the iterator itself.
"""

_LONGEST_PAUSE_S = 0.001
"""Longest pause between two attempts to enter."""

Owner = list[int]
"""A call that holds the lock or waits for it: a new list with the id of its thread. An instance of a class would cost
another 0.2 microseconds per batch.
"""


class CallerLock:
    """Admits one caller at a time. Used as in `OneCallerBatches.__next__`."""

    def __init__(self) -> None:
        self.owner: Owner | None = None
        """The call that holds the lock; None if it is free."""
        self._lock = threading.RLock()  # a signal handler may enter on top of a thread that has it
        _caller_locks.add(self)

    def enter(self, owner: Owner, what: str, patience_s: float | None = None) -> bool:
        """Wait until the lock is free, and give it to `owner`, which releases it by setting `self.owner` to None.

        Args:
            owner: the call.
            what: the name of the call, for the error message.
            patience_s: the timeout; None for no limit.

        Returns:
            False after a timeout.

        Raises:
            ReentrantCall: this thread already holds the lock.
        """
        begun_s, pause_s = 0.0, 0.00005
        while True:
            with self._lock:
                if self.owner is None:
                    self.owner = owner
                    return True
            if self.is_mine():
                raise _reentrant(what)
            now_s = time.monotonic()
            begun_s = begun_s or now_s
            if patience_s is not None and now_s - begun_s > patience_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def run(self, what: str, act: Callable[[], None], patience_s: float | None = None) -> None:
        """Call `act` while holding the lock; do not call it after a timeout. See `enter`."""
        owner = [get_ident()]
        try:
            if self.enter(owner, what, patience_s):
                act()
        finally:
            if self.owner is owner:
                self.owner = None

    def is_mine(self) -> bool:
        """True if this thread holds the lock, further up the stack."""
        owner = self.owner
        return owner is not None and owner[0] == get_ident()

    def reset(self) -> None:
        """Forget the owner, in a child process: its thread may not exist there."""
        self.owner, self._lock = None, threading.RLock()


class OneCallerBatches(Iterator[Any]):
    """An iterator over batches that one caller at a time can use.

    Args:
        caller_lock: the lock that callers take; None for a new one.
    """

    def __init__(self, caller_lock: CallerLock | None = None) -> None:
        self._caller_lock = caller_lock or CallerLock()
        self.leaving = False
        """True once `close` was called."""
        self.at_first: Callable[[], None] | None = None
        """Called with the lock held, before the first batch is made: the epoch may have to be started again by then."""
        self.ending: Progress | None = None
        """The epoch that has ended when `_next` raises StopIteration; None if `close` ended the iteration before its
        end.
        """

    @abstractmethod
    def _next(self) -> object:
        """Make the next batch, and record its delivery as the very last step. The caller holds the lock."""

    @abstractmethod
    def _close(self) -> None:
        """End the iteration. The caller holds the lock."""

    def ready_count(self) -> int:
        """Return how many batches have arrived already and are certain to be delivered."""
        return 0

    def __next__(self) -> Any:
        caller_lock, owner = self._caller_lock, [get_ident()]
        try:
            caller_lock.enter(owner, "next()")
            if self.at_first is not None:
                self.at_first()
                self.at_first = None
            return self._next()
        except StopIteration:
            if self.ending is not None:
                self.ending.ended = True  # no signal handler runs after this: it would find the state of the next epoch
            raise
        finally:
            if caller_lock.owner is owner:
                caller_lock.owner = None

    def apply_pending(self) -> None:
        """Run now what would run before the first batch, if no batch was requested yet."""
        if self.at_first is not None and not self._caller_lock.is_mine():
            self._begin_anew(self.at_first)

    def close(self) -> None:
        """End the iteration: from now on `next` raises StopIteration, also in other threads that are waiting in it.

        May be called twice, from any thread, and from a signal handler. It returns when all resources are released,
        with two exceptions. A handler that interrupts `next` has to return first. If another thread is running the
        user's own code, `close` waits a few seconds for it; after that, the thread releases everything when that code
        returns.
        """
        self.leaving = True
        if not self._caller_lock.is_mine():
            self._caller_lock.run("close()", self._close, _PATIENCE_S)

    def _begin_anew(self, act: Callable[[], None]) -> None:
        """Start another epoch in `act`, once the current holder of the lock has its batch."""
        self._caller_lock.run("iter(loader)", act)


def _reentrant(what: str) -> ReentrantCall:
    return ReentrantCall(
        f"{what} of an iterator was called while the same thread is inside its next(). It would wait for a batch that "
        "only this next() can make. The caller is a dataset, sampler or collate function that uses the iterator of its "
        "own loader, or a signal handler or finalizer that ran at that moment. Make another iterator with "
        "iter(loader) there, or set a flag in the handler and check it in the loop. Other threads may call next()."
    )


_caller_locks: References[CallerLock] = References()


def _reset_in_child() -> None:
    for caller_lock in _caller_locks:
        caller_lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
