"""Row groups that were read, kept for a while: those used last, up to a number of bytes.

Threads share them. A forked process goes on with what its parent had read, under a lock of its own: the entries do not
change once they are there, so whatever state the fork met them in is a good one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_OWN_BYTES = 8192
"""What an entry costs besides its data. A guess: it bounds the number of entries that hold mapped memory, of which a
process can have some ten thousand."""

_DOORS = 16
"""So many row groups can be read at the same time by threads."""


class Blocks(Generic[T]):
    """A cache that is bounded by bytes.

    Args:
        limit_bytes: how much is kept; one entry is kept even if it is larger.

    Example:
        >>> blocks = Blocks[str](10_000)
        >>> blocks.get("a", lambda: ("A", 100)), blocks.get("a", lambda: ("B", 100))
        ('A', 'A')
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._begin()
        self.clear()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._doors = [threading.Lock() for _ in range(_DOORS)]

    def clear(self) -> None:
        """Forget everything."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            self._entries: OrderedDict[Any, tuple[T, int]] = OrderedDict()
            self._bytes = 0

    # Any: a key is any hashable value.
    def get(self, key: Any, load: Callable[[], tuple[T, int]]) -> T:
        """Return the entry; `load` makes it, and says how many bytes it holds, if it is not there."""
        if self._pid != os.getpid():
            self._begin()
        entry = self._look_up(key)
        if entry is None:
            with self._doors[hash(key) % _DOORS]:  # of several threads that want it, one makes it
                entry = self._look_up(key)
                if entry is None:
                    entry = load()
                    self._put(key, entry)
        return entry[0]

    def _look_up(self, key: Any) -> tuple[T, int] | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _put(self, key: Any, entry: tuple[T, int]) -> None:
        with self._lock:
            self._entries[key] = entry
            self._bytes += entry[1] + _OWN_BYTES
            while self._bytes > self.limit_bytes and len(self._entries) > 1:
                _, (_, size) = self._entries.popitem(last=False)
                self._bytes -= size + _OWN_BYTES

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """How much is kept right now."""
        return self._bytes

    def __getstate__(self) -> dict[str, Any]:
        return {"limit_bytes": self.limit_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["limit_bytes"])  # type: ignore[misc]
