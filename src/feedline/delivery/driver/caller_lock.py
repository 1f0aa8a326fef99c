"""One caller at a time, and what an exception of a signal handler may interrupt.

**Callers.** Several threads may request batches from one iterator, and any of them may close it. The thread that makes
a batch holds the caller lock, and other threads wait for it. A thread that already holds it cannot wait for itself, so
its call is refused: a dataset that iterates over its own loader, or a signal handler that requests a batch. Any thread
may call `close` at any time, also a signal handler on top of `next`: it sets a flag, and the thread that holds the lock
sees the flag and leaves. A `threading.Lock` is not enough: it would make such a handler, or such a dataset, wait
forever, and after an interrupt between taking it and entering the `try` nobody would release it.

**The problem.** Python runs signal handlers in the main thread: when a function begins, when one that is written in C
returns, and when a loop starts over. What a handler raises there (Ctrl-C, a timeout, an exception of any class) says
nothing about the code that it interrupts, and it may interrupt any of our lines. `is_interrupt` recognises it wherever
an exception is treated as an answer: as that of a sample, a target, or a task that cannot be sent.

**The contract.**

- `state_dict()` counts a batch only if `next` has returned it. So resuming from the state loses and repeats none.
- An interrupted iteration is over, and every further request says how to continue (`ended_by_interrupt`): it is unknown
  which worker has which batch, or how far a stream or a sampler has advanced. See `OneCallerBatches._is_torn`.
- Without workers and streams, only the interrupted batch is given up: the next request gets the next one, as in torch.

**The mechanism.** Counting needs one moment at which a batch is delivered. It is the assignment at the end of
`Epoch.note` (with workers), of `InlineBatches._note`, of `DeviceBatches._next`, or of `EndOfEpochSync.__next__`. *From
that line to the return of `__next__`, nothing may be called and nothing may loop*, so that no handler runs: not
`next(batches)` but `batches.__next__()`, after which Python does not look for signals; the end of an epoch is an
assignment in an `except` clause. The owner of the lock is cleared the same way, in a `finally` that was entered before
it was set, and only if the owner is that call, so an interrupt anywhere leaves the lock free.

**What does not work.** Delaying signals during `next`, as while workers are started or ended and in finalizers
(`system/interrupts.py`), would keep Ctrl-C from ending a wait for a stuck worker. Catching the exception and finishing
the delivery would drop the user's exception, or raise it with a batch that nobody gets.

**What still fails.** Python 3.10 also runs handlers when a function returns and where an exception is caught: an
interrupt at that moment loses the batch, or leaves the lock taken for good. A stream whose iterator has a state, read
without workers, may have passed some samples of the interrupted batch in the state.

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

from feedline.errors import ReentrantCall, WorkerError
from feedline.order.plan import Progress
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
        self._is_torn = False
        """True while a request changes what cannot be changed half-way. If it is True at the next request, an interrupt
        has ended the iteration.
        """
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
            if self._is_torn and not self.leaving:
                self._close()
                raise ended_by_interrupt()
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
            self._caller_lock.run("iter(loader)", self.at_first)

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


def ended_by_interrupt() -> WorkerError:
    """Return the error for an iteration that cannot continue after an interrupt."""
    return WorkerError(
        "This iteration was ended by an exception that a signal handler raised in the middle of its bookkeeping: it is "
        "unknown which worker has which batch, or how far a stream was read. Start another iteration. To continue "
        "where this one was, without losing a batch, call loader.load_state_dict(loader.state_dict()) first."
    )


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
