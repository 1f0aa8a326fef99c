"""Warm memory for batches that are made in the training process itself, inline or on threads."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.memory.arena import Arena
    from feedline.memory.codec import Bytes

_PAGE = mmap.PAGESIZE

_WORTH_A_SLOT = 128 << 10
"""Smaller arrays come from the ordinary heap, which keeps memory of this size warm by itself (glibc maps larger
requests anew each time, and every page of them faults)."""


class LocalBuffers:
    """The `Memory` of a task: acquires a slot when the first large array is allocated. Each array has its own lease.

    It can serve one task after another.

    Args:
        find: returns the arena, when the first large array is allocated; None if there is none.
    """

    crosses = False
    has_space = True

    def __init__(self, find: Callable[[], Arena | None]) -> None:
        self._find = find
        self._arena: Arena | None = None
        self._slot = -1
        self._is_refused = False
        self._used = 0

    def allocate(self, size: int) -> tuple[Bytes, int] | None:
        if size < _WORTH_A_SLOT or self._is_refused:
            return None
        arena = self._arena
        if arena is None:
            arena = self._find()
            if arena is None:
                return None
            arena.serve(self)  # the loader may be dropped, or use another arena, while this is in use
            self._arena = arena
        if self._slot < 0:
            self._slot = arena.acquire()
            if self._slot < 0:
                self._is_refused = True
                return None
        start = -(-self._used // _PAGE) * _PAGE
        if start + size > arena.slot_bytes:
            return None
        self._used = start + size
        arena.note_use(self._slot, self._used)
        return arena.lease(self._slot, start, size), 0

    @property
    def is_warm(self) -> bool:
        """True if the arena keeps memory for large batches, which `close` gives back after enough small ones."""
        return self._arena is not None and self._arena.is_warm

    def rest(self) -> None:
        """End an epoch; see `Arena.rest`."""
        if self._arena is not None:
            self._arena.rest()

    def close(self) -> None:
        """End the task: its slot becomes free when the last of its arrays is dropped. May be called twice."""
        self._is_refused = False
        self._used = 0
        slot, self._slot = self._slot, -1  # first: after an interrupt, the slot may belong to another task
        if self._arena is not None and (slot >= 0 or self._arena.is_warm):
            self._arena.finish(slot)
