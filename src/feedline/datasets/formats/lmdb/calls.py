"""LMDB calls in progress: a fork waits until those of other threads have ended."""

from __future__ import annotations

import threading

_FORK_S = 1.0
"""How long a fork waits for LMDB calls of other threads. They take microseconds, or as long as the disk takes."""


class _Calls:
    """LMDB calls in progress, by thread. A fork waits for them.

    A call that is interrupted by a fork never ends in the child, and the lmdb package would wait for it when the child
    closes an inherited environment.
    """

    def __init__(self) -> None:
        self._forks = 0
        self._threads: list[int] = []
        self._changed = threading.Condition()

    # No lock, for speed: a thread adds itself to the list before it checks for forks, and a fork announces itself
    # before it checks the list.
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
        """Block new calls, and wait up to `_FORK_S` for those of other threads to end."""
        own = {threading.get_ident()}
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: own.issuperset(self._threads), _FORK_S)

    def after_fork(self) -> None:
        """Allow calls again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the calls of threads that do not exist in the child."""
        self._forks = 0
        self._threads = [one for one in self._threads if one == threading.get_ident()]
        self._changed = threading.Condition()


calls = _Calls()
