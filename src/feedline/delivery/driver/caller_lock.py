"""One caller at a time: several threads may request batches from one iterator, and any of them may close it.

The thread that makes a batch holds the caller lock, and other threads wait for it. A thread that already holds it
cannot wait for itself, so its call is refused: a dataset that iterates over its own loader, or a signal handler that
requests a batch. Any thread may call `close` at any time, also a signal handler on top of `next`: it sets a flag, and
the thread that holds the lock sees the flag and leaves.

The caller lock stores its owner: an object that each call creates, with the id of its thread. A real lock makes testing
and setting the owner one step. Each call clears the owner in a `finally` that it entered before, and only if the owner
is its own. So an exception raised by a signal handler leaves the caller lock free, wherever it occurs. (Python 3.10 may
also run a handler while an exception is being caught: then the owner stays set, and the iterator can no longer be
used.)

The owner is cleared by an assignment, not by a call, because signal handlers run at calls and at the beginning of
functions and loops. So no handler runs between the last line of `_next`, which records that the batch is delivered, and
the return from `__next__`, where it would lose the batch. (Python 3.10 also runs handlers when a call returns, so an
interrupt at that moment loses the batch there.)

Test: tests/faults/test_shared_iterator.py, tests/faults/test_storm.py
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol, TypeVar

from feedline.errors import ReentrantCall
from feedline.order.progress import Progress
from feedline.system.references import References

_PATIENCE_S = 5.0
"""How long `close` waits for another thread that is running the user's own code, such as a sampler. When that code
returns, the thread closes the iterator itself.
"""

_LONGEST_PAUSE_S = 0.001
"""Longest pause between two attempts to enter."""

T = TypeVar("T", bound="Closable")

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


class Closable(Protocol):
    """An iteration of either loader."""

    def close(self) -> None: ...

    def apply_pending(self) -> None: ...


class Running:
    """The iterations of a loader that may still be in use."""

    def __init__(self) -> None:
        self._batches: References[Closable] = References()
        self.early: Iterator[object] | None = None
        """An iteration that was started before the first `iter(loader)`."""
        self._beginnings: set[object] = set()
        self.last_close = object()
        """A new object after every `close`."""

    def __reduce__(self) -> tuple[object, ...]:
        return Running, ()  # iterations stay with the loader that began them

    @contextmanager
    def beginning(self, give_back: Callable[[], None]) -> Iterator[object]:
        """A context in which to create an iteration, which `close` does not know yet. Many threads may be in one.

        Args:
            give_back: called at the end if `close` was called meanwhile, to release what `close` had to leave in use.

        Yields:
            The last `close` before it, for `begun`.
        """
        mark, last_close = object(), self.last_close
        self._beginnings.add(mark)
        try:
            yield last_close
        finally:
            self._beginnings.discard(mark)
            if self.last_close is not last_close:
                give_back()

    def begun(self, batches: T, last_close: object) -> T:
        """Register a new iteration, and close it if `close` was called meanwhile; returns it."""
        self._batches.add(batches)  # first: a `close` from now on finds it
        if self.last_close is not last_close:
            batches.close()
        return batches

    def is_beginning(self) -> bool:
        """True while a thread is creating an iteration."""
        return bool(self._beginnings)

    def apply_pending(self) -> None:
        """Apply pending `set_epoch()` calls to iterators that have not produced a batch yet."""
        for batches in self._batches:
            batches.apply_pending()

    def close(self) -> None:
        """End all iterations, including those that are being created."""
        self.last_close = object()  # first: see `begun`
        self.early = None
        for batches in self._batches:
            batches.close()


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
