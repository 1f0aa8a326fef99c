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
        self._forks = 0
        self._threads: list[int] = []
        self._changed = threading.Condition()

    # Without the lock, for speed: a thread is in the list before it looks for forks, which look the other way round.
    def __enter__(self) -> None:
        own = threading.get_ident()
        self._threads.append(own)
        while self._forks:
            self.__exit__()
            with self._changed:
                self._changed.wait_for(lambda: not self._forks)
            self._threads.append(own)

    def __exit__(self, *_: object) -> None:
        self._threads.remove(threading.get_ident())
        if self._forks:
            with self._changed:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let nobody begin a call, and wait until those of other threads have ended."""
        own = {threading.get_ident()}
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: own.issuperset(self._threads), _FORK_S)

    def after_fork(self) -> None:
        """Go on."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the calls of threads that are not here."""
        self._forks = 0
        self._threads = [one for one in self._threads if one == threading.get_ident()]
        self._changed = threading.Condition()


calls = _Calls()
