"""One at a time: several threads may ask one iterator for batches, and any of them may close it.

Whoever makes a batch is inside. Other threads wait; the same thread cannot wait for itself, so it is refused (a dataset
that iterates over its own loader, a signal handler that asks for a batch). `close` is a wish, which any thread may
utter at any moment, a signal handler on top of `next` included: whoever is inside sees it and leaves.

The entrance holds the number of the thread that is inside. It is no lock: giving a lock back is a call, and a signal
handler that raises an exception when that call returns would lose the batch. What is assumed of the interpreter
instead: with the GIL, threads change, and signal handlers run, at calls, at the beginning of functions and when a loop
begins again, and nowhere else. So nobody comes between a test of `owner` that does not jump and the assignment after
it; nor between the last line of `_next`, which notes that the batch is delivered, and the return from `__next__`.
(Python 3.10 also looks for signals when a call returns: there an interrupt in that moment loses the batch; and when an
exception is caught, so that `ended` is noted after that.) Without the GIL a lock is taken.

A thread that finds its own number in the entrance is inside already. So whoever enters looks for that first, and gives
the place back afterwards only if it has it: an interrupt may come before it does.
Test: tests/faults/test_shared_iterator.py, tests/faults/test_storm.py
"""

from __future__ import annotations

import os
import sys
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

_HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Entrance:
    """Lets one caller at a time in. Used as in `ExclusiveBatches.__next__`, or by `run`."""

    def __init__(self) -> None:
        self.owner: int | None = None
        """The thread that is inside."""
        self._test = threading.Lock()
        _entrances.add(self)

    def wait(self, patience_s: float | None = None) -> bool:
        """Wait until nobody is inside, and take the place. Give it back by setting `owner` to None.

        Args:
            patience_s: how long to wait at most.

        Returns:
            False if it took too long.
        """
        begun_s = time.monotonic()
        pause_s = 0.00005
        while not self._take(get_ident()):
            if patience_s is not None and time.monotonic() - begun_s > patience_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _take(self, thread: int) -> bool:
        if _HAS_GIL:
            if self.owner is not None:
                return False
            self.owner = thread
            return True
        with self._test:
            if self.owner is not None:
                return False
            self.owner = thread
            return True

    def is_mine(self) -> bool:
        """True if this thread is inside, up the stack."""
        return self.owner == get_ident()

    def run(self, what: str, act: Callable[[], None], patience_s: float | None = None) -> None:
        """Call `act` while nobody else is inside. After waiting for too long, return without calling it.

        Args:
            what: what the caller is about to do.
            act: called inside.
            patience_s: how long to wait at most.

        Raises:
            ReentrantCall: this thread is inside already.
        """
        me = get_ident()
        if self.owner == me:
            raise _reentrant(what)
        try:
            if self.wait(patience_s):
                act()
        finally:
            if self.owner == me:
                self.owner = None


class ExclusiveBatches(Iterator[Any]):
    """An iterator over batches that one caller at a time can use.

    Args:
        entrance: where callers come in; of its own if not given.
    """

    def __init__(self, entrance: Entrance | None = None) -> None:
        self._entrance = entrance or Entrance()
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
        entrance, me = self._entrance, get_ident()
        if entrance.owner == me:
            raise _reentrant("next()")
        try:
            if entrance.owner is None and _HAS_GIL:
                entrance.owner = me
            else:
                entrance.wait()
            if self.at_first is not None:
                self.at_first()
                self.at_first = None
            batch = self._next()
        except StopIteration:
            entrance.owner = None
            if self.ending is not None:
                self.ending.ended = True  # no signal comes after this: it would find a state of the next epoch
            raise
        except BaseException:
            if entrance.owner == me:
                entrance.owner = None
            raise
        entrance.owner = None
        return batch

    def settle(self) -> None:
        """Do now what would be done before the first batch, if none was asked for yet."""
        if self.at_first is not None and not self._entrance.is_mine():
            self._begin_anew(self.at_first)

    def close(self) -> None:
        """End the iteration: `next` raises StopIteration from then on, in other threads that wait for it as well.

        May be called twice, from any thread, and from a signal handler. It returns when everything is given back, with
        two exceptions: a handler that interrupts `next` has to return first; and a thread that is in the user's own
        code is waited for a few seconds only, and gives everything back when it leaves that.
        """
        self.leaving = True
        entrance = self._entrance
        if not entrance.is_mine():
            entrance.run("close()", self._close, _PATIENCE_S)

    def _begin_anew(self, act: Callable[[], None]) -> None:
        """Begin another epoch in `act`, when whoever is inside has got a batch."""
        self._entrance.run("iter(loader)", act)


class Closable(Protocol):
    """An iteration of either loader."""

    def close(self) -> None: ...

    def settle(self) -> None: ...


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

    def settle(self) -> None:
        """Let those that nothing was asked of hear what they were told since they began."""
        for batches in self._batches:
            batches.settle()

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


_entrances: References[Entrance] = References()


def _free_in_child() -> None:
    # Another thread of the process that forked may have been inside, and does not exist here.
    for entrance in _entrances:
        entrance.owner = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
