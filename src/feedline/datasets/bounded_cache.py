"""A cache that keeps what was used last, up to a limit: blocks that were read, files that are open.

Threads share it. A forked process goes on with what its parent had, under a lock of its own: entries do not change once
they are there, so whatever state the fork met them in is a good one. Pickled, it arrives empty.
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
        release: called with each value that is dropped. It has to be picklable if the cache is pickled.
    """

    def __init__(self, limit: int, release: Callable[[V], object] | None = None) -> None:
        self.limit = limit
        self.held = 0
        """What the sizes add up to right now."""
        self._release = release
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

    def put(self, key: K, value: V, size: int = 1, *, trims: bool = True) -> None:
        """Keep a value, in place of those that were not used for the longest time; those only if `trims`."""
        with self._own_lock():
            self.held += size - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, size
        if trims:
            self.trim()

    def trim(self) -> None:
        """Drop what is too much, the longest unused first."""
        dropped = []
        with self._own_lock():
            while self.held > self.limit and len(self._entries) > 1:
                value, size = self._entries.popitem(last=False)[1]
                self.held -= size
                dropped.append(value)
        self._release_all(dropped)

    def drop(self, key: K) -> None:
        """Drop a value that is there."""
        with self._own_lock():
            value, size = self._entries.pop(key)
            self.held -= size
        self._release_all([value])

    def clear(self) -> None:
        """Drop everything."""
        with self._own_lock():
            dropped, self.held = self.values(), 0
            self._entries = OrderedDict()
        self._release_all(dropped)

    def _release_all(self, values: list[V]) -> None:
        for value in values if self._release is not None else ():
            self._release(value)  # type: ignore[misc]  # it is not None

    def values(self) -> list[V]:
        """Return what is kept, the longest unused first."""
        return [value for value, _ in self._entries.values()]

    def __len__(self) -> int:
        return len(self._entries)

    # Any: what pickle takes.
    def __reduce__(self) -> Any:
        return BoundedCache, (self.limit, self._release)
