"""One caller at a time: several threads may ask one iterator for batches, and any of them may close it.

Whoever makes a batch is inside. Others wait for the lock; the same thread cannot, so it is refused (a dataset that
iterates over its own loader, a signal handler that asks for a batch). `close` is a wish, which any thread may utter at
any moment, a signal handler on top of `next` included: whoever is inside sees it and leaves, and closes if nobody waits
to do so.

A signal handler may raise an exception between any two instructions of the main thread. `with` takes a lock, and gives
it back, without such a moment on the way in; plain assignments, of which `finally` consists here, have none at all. One
is left: the lock is back, and the batch is on its way to the caller. Then it is taken back.
Test: tests/faults/test_shared_iterator.py, tests/faults/test_storm.py
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from feedline.errors import ReentrantCall
from feedline.references import References

_PATIENCE_S = 5.0
"""How long `close` waits for another thread that is inside of the user's own code, such as a sampler. Once that returns,
the thread closes the iterator itself."""


class ExclusiveBatches(Iterator[Any]):
    """An iterator over batches that one caller at a time can use."""

    # Any: the type that threading.RLock returns has no public name, and it is asked who owns it.
    def __init__(self, lock: Any = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self._inside = False
        """True while somebody makes a batch, or begins an epoch."""
        self._taken: Any = None
        """What is needed to undo the delivery of the last batch."""
        self.leaving = False
        """True once somebody has asked for the end."""
        _all.add(self)

    @abstractmethod
    def _next(self) -> Any:
        """Make the next batch, and note that it is delivered. Nobody else is inside."""

    @abstractmethod
    def _take_back(self, exc: BaseException, batch: Any, taken: Any) -> None:
        """Undo the delivery of a batch: an interrupt kept it from its caller. May be called twice.

        Args:
            exc: the interrupt.
            batch: what was not delivered.
            taken: what `_taken` was then; another thread may have been inside since.
        """

    @abstractmethod
    def _close(self) -> None:
        """End the iteration. Nobody else is inside."""

    def __next__(self) -> Any:
        batch = taken = _NOTHING
        try:
            with self._lock:
                if self._inside:
                    raise _reentrant("next()")
                self._inside = True
                try:
                    batch = self._next()
                    taken = self._taken
                finally:
                    self._inside = False
            return batch
        except BaseException as exc:
            if batch is not _NOTHING:
                try:
                    self._undo(exc, batch, taken)
                except BaseException:  # another signal, on the way in
                    self._undo(exc, batch, taken)
                    raise
            raise

    def _undo(self, exc: BaseException, batch: Any, taken: Any) -> None:
        try:
            with self._lock:
                self._take_back(exc, batch, taken)
        except BaseException:  # another signal
            self._undo(exc, batch, taken)
            raise

    def close(self) -> None:
        """End the iteration: `next` raises StopIteration from then on, in other threads that wait for it as well.

        May be called twice, from any thread, and from a signal handler. It returns when everything is given back, with
        two exceptions: a handler that interrupts `next` has to return first; and a thread that is in the user's own
        code is waited for a few seconds only, and gives everything back when it leaves that.
        """
        self.leaving = True
        lock = self._lock
        if lock._is_owned():  # by this thread, up the stack
            if not self._inside:
                self._close()
            return
        try:
            if lock.acquire(timeout=_PATIENCE_S):
                self._close()
        finally:
            if lock._is_owned():
                lock.release()

    def _begin_anew(self, act: Callable[[], None]) -> None:
        """Begin another epoch in `act`, when whoever is inside has got a batch."""
        with self._lock:
            if self._inside:
                raise _reentrant("iter(loader)")
            self._inside = True
            try:
                act()
            finally:
                self._inside = False


class Running:
    """The iterations of a loader that somebody may go on with."""

    # Any: an iterator with `close`, of either loader.
    def __init__(self) -> None:
        self._batches: References[Any] = References()

    def __reduce__(self) -> Any:
        return Running, ()  # they stay with the loader that began them

    def add(self, batches: Any) -> Any:
        """Remember an iteration; returns it."""
        self._batches.add(batches)
        return batches

    def close(self) -> None:
        """End all of them."""
        for batches in self._batches:
            batches.close()


def _reentrant(what: str) -> ReentrantCall:
    return ReentrantCall(
        f"{what} of an iterator was called while the same thread is inside of its next(): by the dataset, a sampler or a "
        "collate function that uses the iterator of its own loader, or by a signal handler or a finalizer that ran in "
        "that moment. Only next() itself could make the batch that it would wait for. Make another iterator with "
        "iter(loader) there, or let the handler set a flag that the loop looks at. Other threads may call next()."
    )


_NOTHING = object()

_all: References[ExclusiveBatches] = References()


def _free_in_child() -> None:
    # Another thread of the process that forked may have been inside, and does not exist here.
    for batches in _all:
        batches._lock._at_fork_reinit()
        batches._inside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
