"""Handles that belong to one process: files, environments, connections.

A handle is opened on first use, in the process that uses it. A dataset that holds one can be pickled and forked: the
handle stays behind, and the other process opens its own. A forked process never uses an inherited handle. It closes one
only if the library declares that safe, since closing could affect the parent's. When the last reference to a handle
disappears, everything it has open is closed.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")

_inherited: list[object] = []
"""Handles of other processes, kept so that no destructor closes them."""


class ClosedWhenDeleted:
    """Base of classes with a resource that only `close` gives back, such as a file descriptor, which is a number.

    At interpreter shutdown, modules lose their contents before the last objects are deleted, so `close` would fail
    then. It is not called: the system closes everything.
    """

    @abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""

    def _needs_closing(self) -> bool:
        """True if there is something to give back; also called if the constructor failed."""
        return True

    # A default value, because this module may have lost its contents as well.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self._needs_closing():
            self.close()


class Handle(ClosedWhenDeleted, Generic[H]):
    """Opens a resource once per process, or once per thread of a process.

    Args:
        opener: opens the resource; must be picklable, because datasets are sent to workers.
        closer: closes it.
        per_thread: True if threads must not share it.
        close_inherited: True if a forked process may close an inherited resource, and must do so before it opens
            another.
    """

    def __init__(
        self,
        opener: Callable[[], H],
        closer: Callable[[H], object],
        *,
        per_thread: bool = False,
        close_inherited: bool = False,
    ) -> None:
        self._opener = opener
        self._closer = closer
        self._per_thread = per_thread
        self._close_inherited = close_inherited
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._opened: dict[int, H] = {}
        """By thread; 0 if all threads share one."""

    def get(self) -> H:
        """Return the resource of this process or thread; open it first if needed."""
        if self._pid != os.getpid():
            self._leave_behind()
        thread = threading.get_ident() if self._per_thread else 0
        handle = self._opened.get(thread)  # without the lock: a dict locks itself, or the GIL does
        if handle is not None:
            return handle
        with self._lock:
            if thread not in self._opened:
                if self._per_thread:  # close what belonged to threads that have ended
                    alive = {thread.ident for thread in threading.enumerate()}
                    for ended in [one for one in self._opened if one not in alive]:
                        self._closer(self._opened.pop(ended))
                self._opened[thread] = self._opener()
            return self._opened[thread]

    def close(self) -> None:
        """Close what all threads of this process have open. The next use opens it again."""
        if self._pid != os.getpid():
            self._leave_behind()
        with self._lock:
            opened, self._opened = self._opened, {}
        for handle in opened.values():
            self._closer(handle)

    def _leave_behind(self) -> None:
        inherited = self._opened
        self._begin()
        for handle in inherited.values():
            if self._close_inherited:
                self._closer(handle)
            else:
                _inherited.append(handle)

    def __getstate__(self) -> dict[str, object]:
        kept = ("_lock", "_opened", "_pid")
        return {name: value for name, value in self.__dict__.items() if name not in kept}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _needs_closing(self) -> bool:
        return bool(self.__dict__.get("_opened"))
