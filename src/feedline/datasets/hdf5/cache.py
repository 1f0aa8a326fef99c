"""Chunks that were unpacked, kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from feedline.datasets.hdf5.cells import Cells


class ChunkCache:
    """Keeps the chunks that were used last, up to a number of bytes. Threads may use it at the same time.

    Example:
        >>> import numpy as np
        >>> cache = ChunkCache(100)
        >>> for name in "abc":
        ...     cache.put(name, np.zeros(1, "V40"))
        >>> [cache.get(name) is not None for name in "abc"]
        [False, True, True]
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._chunks: OrderedDict[Hashable, Cells] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Cells | None:
        """Return a chunk, None if it is not there any more."""
        with self._lock:
            found = self._chunks.get(key)
            if found is not None:
                self._chunks.move_to_end(key)
            return found

    def put(self, key: Hashable, chunk: Cells) -> None:
        """Keep a chunk in place of those that have not been used for the longest time."""
        if chunk.nbytes > self._limit_bytes:
            return
        with self._lock:
            if key in self._chunks:
                return
            self._chunks[key] = chunk
            self._held_bytes += chunk.nbytes
            while self._held_bytes > self._limit_bytes:
                self._held_bytes -= self._chunks.popitem(last=False)[1].nbytes
