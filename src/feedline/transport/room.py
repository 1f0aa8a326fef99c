"""Warm memory for batches that are made in the training process itself, inline or on threads."""

from __future__ import annotations

from feedline.transport.arena import Arena, Bytes
from feedline.transport.codec import ALIGNMENT

_WORTH_A_SLOT = 128 << 10
"""Smaller arrays come from the ordinary heap, which keeps memory of this size warm by itself (glibc maps larger
requests anew each time, and every page of them faults)."""


class LocalRoom:
    """The `Memory` of one task: takes a slot when the first large array asks for room."""

    __slots__ = ("_arena", "_is_refused", "_lease", "_slot", "_used")

    crosses = False

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._lease: Bytes | None = None
        self._slot = -1
        self._is_refused = False
        self._used = 0

    def allocate(self, size: int) -> tuple[Bytes, int] | None:
        if size < _WORTH_A_SLOT:
            return None
        if self._lease is None:
            if self._is_refused:
                return None
            self._slot = self._arena.acquire()
            if self._slot < 0:
                self._is_refused = True
                self._arena.refused += 1
                return None
            self._lease = self._arena.lease(self._slot)
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if start + size > self._lease.nbytes:
            return None
        self._used = start + size
        self._arena.note_use(self._slot, self._used)
        return self._lease, start
