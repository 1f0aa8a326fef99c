"""Warm memory for batches that are made in the training process itself, inline or on threads."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from feedline.abc.memory import WORTH_A_SLOT
from feedline.memory.reading import Bytes

if TYPE_CHECKING:
    from feedline.memory.arena import Arena

T = TypeVar("T")

_PAGE = mmap.PAGESIZE


class LocalBuffers:
    """The `Memory` of a task: acquires a slot when the first large array is allocated. Each array has its own lease.

    It can serve one task after another.
    """

    __slots__ = ("_arena", "_is_refused", "_slot", "_used")

    crosses = False
    has_space = True

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._slot = -1
        self._is_refused = False
        self._used = 0

    def allocate(self, size: int) -> tuple[Bytes, int] | None:
        if size < WORTH_A_SLOT or self._is_refused:
            return None
        if self._slot < 0:
            self._slot = self._arena.acquire()
            if self._slot < 0:
                self._is_refused = True
                self._arena.note_refused()
                return None
        start = -(-self._used // _PAGE) * _PAGE
        if start + size > self._arena.slot_bytes:
            return None
        self._used = start + size
        self._arena.note_use(self._slot, self._used)
        return self._arena.lease(self._slot, start, size), 0

    @property
    def is_warm(self) -> bool:
        """True if the arena keeps memory for large batches, which `close` gives back after enough small ones."""
        return self._arena.is_warm

    def rest(self) -> None:
        """End an epoch; see `Arena.rest`."""
        self._arena.rest()

    def close(self) -> None:
        """End the task: its slot becomes free when the last of its arrays is dropped. May be called twice."""
        self._is_refused = False
        self._used = 0
        slot, self._slot = self._slot, -1  # first: after an interrupt, the slot may belong to another task
        if slot >= 0:
            self._arena.finish(slot)
        elif self._arena.is_warm:
            self._arena.pass_by()


def in_local_buffers(buffer: LocalBuffers | None, make: Callable[..., T], *arguments: object) -> T:
    """Call `make` with these arguments and then `buffer`, which is closed afterwards; `buffer` may be None."""
    if buffer is None:
        return make(*arguments, None)
    try:
        return make(*arguments, buffer)
    finally:
        buffer.close()
