"""Calls of LMDB that threads are at, so that nobody forks in the middle of one."""

from __future__ import annotations

import threading

_FORK_S = 1.0
"""How long a fork waits for calls of LMDB that other threads are at: of microseconds, or as long as a disk takes."""


class _Calls:
    """Calls of LMDB that threads are at. A fork waits for them.

    In a forked process they never end, and its Python package waits for them when what was inherited is closed.
    """

    def __init__(self) -> None:
        self.forks = 0
        self._begin()

    def _begin(self) -> None:
        self._threads: list[int] = []
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while self.forks:
                self._changed.wait()
            self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._threads.remove(threading.get_ident())
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Let nobody begin a call, and wait until those of other threads have ended."""
        own = {threading.get_ident()}
        with self._changed:
            self.forks += 1
            self._changed.wait_for(lambda: own.issuperset(self._threads), _FORK_S)

    def after_fork(self) -> None:
        """Go on."""
        with self._changed:
            self.forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the calls of threads that are not here."""
        self.forks = 0
        self._begin()


calls = _Calls()
