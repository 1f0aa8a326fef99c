"""A cache that keeps what was used last, up to a limit: blocks that were read, files that are open.

Threads share it. A forked process goes on with what its parent had, under a lock of its own: entries do not change once
they are there, so whatever state the fork met them in is a good one. Pickled, it arrives empty. What is dropped is let
go of, so that an open file is closed as soon as nobody else reads it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_DOORS = 16
"""So many entries can be made at the same time by threads."""


class BoundedCache(Generic[K, V]):
    """Keeps the values that were used last.

    Args:
        limit: what the sizes of all values may add up to: bytes; or a number of values, whose size is 1 unless another
            is given. The value that came last is kept even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """What the sizes add up to right now."""
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._doors = [threading.Lock() for _ in range(_DOORS)]

    def _own_lock(self) -> threading.Lock:
        if self._pid != os.getpid():
            self._begin()
        return self._lock

    def get(self, key: K) -> V | None:
        """Return a value, None if it is not there, or not any more."""
        try:  # without the lock, for speed: each step is whole by itself
            value = self._entries[key][0]
            self._entries.move_to_end(key)
        except KeyError:  # at the second step: another thread has dropped it meanwhile
            return None
        return value

    def load(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return a value; `make` returns it, and its size, if it is not there. Of several threads one calls it."""
        value = self.get(key)
        if value is None:
            self._own_lock()  # before the doors: in a forked process they are new as well
            with self._doors[hash(key) % _DOORS]:
                value = self.get(key)
                if value is None:
                    value, size = make()
                    self.put(key, value, size)
        return value

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keep a value, in place of those that were not used for the longest time."""
        dropped = []  # until the lock is free again: letting go of a value may close a file
        with self._own_lock():
            self.held += size - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, size
            while self.held > self.limit and len(self._entries) > 1:
                dropped.append(self._entries.popitem(last=False)[1])
                self.held -= dropped[-1][1]

    def drop(self, key: K) -> None:
        """Drop a value that is there."""
        with self._own_lock():
            dropped = self._entries.pop(key)
            self.held -= dropped[1]

    def clear(self) -> None:
        """Drop everything."""
        with self._own_lock():
            dropped, self.held = self._entries, 0
            self._entries = OrderedDict()
        dropped.clear()

    def __len__(self) -> int:
        return len(self._entries)

    # Any: what pickle takes.
    def __reduce__(self) -> Any:
        return BoundedCache, (self.limit,)
