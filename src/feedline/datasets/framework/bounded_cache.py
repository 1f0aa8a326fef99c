"""An LRU cache with a size limit, for blocks that were read and files that are open.

Threads share it. A forked process keeps its parent's entries, under a new lock: entries never change once stored, so
they are valid whenever the fork happens. Pickling it yields an empty cache. The cache drops its reference to an evicted
value, so an open file is closed as soon as nothing else reads it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_DOORS = 16
"""How many entries threads can make at the same time."""
_HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class BoundedCache(Generic[K, V]):
    """Keeps the most recently used values.

    Args:
        limit: the largest total size of all values: in bytes, or a number of values, whose size is 1 by default. The
            newest value is kept even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Current total size."""
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
        """Return a value, or None if the cache does not hold it."""
        # With the GIL, each step is atomic, and no lock is faster. Without it, Python 3.13 does not protect the order.
        if not _HAS_GIL:
            with self._own_lock():
                return self._found(key)
        return self._found(key)

    def _found(self, key: K) -> V | None:
        try:
            value = self._entries[key][0]
            self._entries.move_to_end(key)
        except KeyError:  # at the second step: another thread has just dropped it
            return None
        return value

    def load(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return a value; if it is missing, only one thread calls `make`, which returns the value and its size."""
        value = self.get(key)
        if value is None:
            self._own_lock()  # before the doors: a forked process replaces them too
            with self._doors[hash(key) % _DOORS]:
                value = self.get(key)
                if value is None:
                    value, size = make()
                    self.put(key, value, size)
        return value

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Store a value, and drop the least recently used ones to make room."""
        dropped = []  # keep references until the lock is released: dropping a value may close a file
        with self._own_lock():
            self.held += size - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, size
            while self.held > self.limit and len(self._entries) > 1:
                dropped.append(self._entries.popitem(last=False)[1])
                self.held -= dropped[-1][1]

    def drop(self, key: K) -> None:
        """Drop a value that the cache holds."""
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

    def __reduce__(self) -> tuple[object, ...]:
        return BoundedCache, (self.limit,)
