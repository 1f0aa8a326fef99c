"""One at a time: several threads may ask one iterator for batches, and any of them may close it.

The thread that makes a batch holds the caller lock, and other threads wait for it. A thread that already holds it
cannot wait for itself, so its call is refused: a dataset that iterates over its own loader, or a signal handler that
asks for a batch. Any thread may call `close` at any time, also a signal handler on top of `next`: it sets a flag, and
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
from threading import get_ident
from typing import Any, Protocol, TypeVar

from feedline.errors import ReentrantCall
from feedline.order.progress import Progress
from feedline.system.references import References

_PATIENCE_S = 5.0
"""How long `close` waits for another thread that is inside of the user's own code, such as a sampler. Once that
returns, the thread closes the iterator itself."""

_LONGEST_PAUSE_S = 0.001
"""How often at least somebody who waits looks again."""

T = TypeVar("T", bound="Closable")

Owner = list[int]
"""A call that is inside, or about to be: a list of its own with the id of its thread. An object of a class would cost
another 0.2 microseconds per batch."""


class CallerLock:
    """Lets one caller at a time in. Used as in `OneCallerBatches.__next__`."""

    def __init__(self) -> None:
        self.owner: Owner | None = None
        """Who is inside."""
        self._lock = threading.RLock()  # a signal handler may enter on top of a thread that has it
        _caller_locks.add(self)

    def enter(self, owner: Owner, what: str, patience_s: float | None = None) -> bool:
        """Wait until nobody is inside, and let `owner` in. It leaves by setting `owner` to None.

        Args:
            owner: the call.
            what: what the caller is about to do.
            patience_s: how long to wait at most.

        Returns:
            False if it took too long.

        Raises:
            ReentrantCall: this thread is inside itself.
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
        """Enter, call `act` and leave; return without calling it if entering takes too long. See `enter`."""
        owner = [get_ident()]
        try:
            if self.enter(owner, what, patience_s):
                act()
        finally:
            if self.owner is owner:
                self.owner = None

    def is_mine(self) -> bool:
        """True if this thread is inside, up the stack."""
        owner = self.owner
        return owner is not None and owner[0] == get_ident()

    def reset(self) -> None:
        """Forget who was inside, in a child process: it may be a thread that does not exist there."""
        self.owner, self._lock = None, threading.RLock()


class OneCallerBatches(Iterator[Any]):
    """An iterator over batches that one caller at a time can use.

    Args:
        caller_lock: where callers come in; of its own if not given.
    """

    def __init__(self, caller_lock: CallerLock | None = None) -> None:
        self._caller_lock = caller_lock or CallerLock()
        self.leaving = False
        """True once somebody has asked for the end."""
        self.at_first: Callable[[], None] | None = None
        """Called inside, before the first batch is made: what was begun may have to begin again."""
        self.ending: Progress | None = None
        """What has ended if `_next` raises StopIteration; None before the end of the epoch, where `close` does that."""

    @abstractmethod
    def _next(self) -> Any:
        """Make the next batch, and note, at the very end, that it is delivered. Nobody else is inside."""

    @abstractmethod
    def _close(self) -> None:
        """End the iteration. Nobody else is inside."""

    def ready_count(self) -> int:
        """Return how many batches are there already, and sure to come."""
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
                self.ending.ended = True  # no signal comes after this: it would find a state of the next epoch
            raise
        finally:
            if caller_lock.owner is owner:
                caller_lock.owner = None

    def apply_pending(self) -> None:
        """Do now what would be done before the first batch, if none was asked for yet."""
        if self.at_first is not None and not self._caller_lock.is_mine():
            self._begin_anew(self.at_first)

    def close(self) -> None:
        """End the iteration: `next` raises StopIteration from then on, in other threads that wait for it as well.

        May be called twice, from any thread, and from a signal handler. It returns when everything is given back, with
        two exceptions: a handler that interrupts `next` has to return first; and a thread that is in the user's own
        code is waited for a few seconds only, and gives everything back when it leaves that.
        """
        self.leaving = True
        if not self._caller_lock.is_mine():
            self._caller_lock.run("close()", self._close, _PATIENCE_S)

    def _begin_anew(self, act: Callable[[], None]) -> None:
        """Begin another epoch in `act`, when whoever is inside has got a batch."""
        self._caller_lock.run("iter(loader)", act)


class Closable(Protocol):
    """An iteration of either loader."""

    def close(self) -> None: ...

    def apply_pending(self) -> None: ...


class Beginning:
    """An iteration that is being made, which `Running.close` does not know yet."""

    def __init__(
        self,
        running: Running,
        known: References[Closable],
        beginnings: set[Beginning],
        give_back: Callable[[], None],
    ) -> None:
        self._running = running
        self._known = known
        self._beginnings = beginnings
        self._give_back = give_back

    def __enter__(self) -> Beginning:
        self._beginnings.add(self)
        self._last_close = self._running.last_close
        return self

    def begun(self, batches: T) -> T:
        """Remember the iteration that was made, and close it if `close` was called meanwhile; returns it."""
        self._known.add(batches)  # first: a `close` from now on finds it
        if self._running.last_close is not self._last_close:
            batches.close()
        return batches

    def __exit__(self, *exception: object) -> None:
        self._beginnings.discard(self)
        if self._running.last_close is not self._last_close:
            self._give_back()


class Running:
    """The iterations of a loader that somebody may go on with."""

    def __init__(self) -> None:
        self._batches: References[Closable] = References()
        self.early: Any = None
        """An iteration that was begun before anybody iterates."""
        self._beginnings: set[Beginning] = set()
        self.last_close = object()
        """Another object after every `close`."""

    def __reduce__(self) -> Any:
        return Running, ()  # they stay with the loader that began them

    def beginning(self, give_back: Callable[[], None]) -> Beginning:
        """Return a context in which an iteration is made. Many threads may be in one.

        Args:
            give_back: called at the end if `close` was called meanwhile: it has left to the context what was in use.
        """
        return Beginning(self, self._batches, self._beginnings, give_back)

    def is_beginning(self) -> bool:
        """True while a thread makes an iteration."""
        return bool(self._beginnings)

    def take_early(self) -> Any:
        """Return the iteration that was begun early, once; None if there is none."""
        early, self.early = self.early, None
        return early

    def apply_pending(self) -> None:
        """Let those that nothing was asked of hear what they were told since they began."""
        for batches in self._batches:
            batches.apply_pending()

    def close(self) -> None:
        """End all of them, and those that are about to begin."""
        self.last_close = object()  # first: see `Beginning.begun`
        self.early = None
        for batches in self._batches:
            batches.close()


def _reentrant(what: str) -> ReentrantCall:
    return ReentrantCall(
        f"{what} of an iterator was called while the same thread is inside of its next(): by the dataset, a sampler or "
        "a collate function that uses the iterator of its own loader, or by a signal handler or a finalizer that ran "
        "in that moment. Only next() itself could make the batch that it would wait for. Make another iterator with "
        "iter(loader) there, or let the handler set a flag that the loop looks at. Other threads may call next()."
    )


_caller_locks: References[CallerLock] = References()


def _reset_in_child() -> None:
    for caller_lock in _caller_locks:
        caller_lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
