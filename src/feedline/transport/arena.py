"""One piece of memory for all batches of a loader, cut into slots.

The arena is a sparse file without a name (`memfd`), mapped once by the consumer and once by every worker. It is far
larger than what is ever used: a slot is a range of addresses, and only the pages a batch really touched exist. So
slots need no size classes, a batch may grow from one step to the next, and pages stay warm because the slot that was
used last is used first.

Who owns a slot, and who moves it on (all of this in the consumer's process; workers only get numbers):

    free --acquire--> given to a task --lease--> views in the training loop --last view dies--> free
                          |                                                                      ^
                          +---------------------------release------------------------------------+

A lease is a NumPy array over the slot. Every tensor or array of the batch keeps it alive, and a weak reference tells
when the last of them died, on whatever thread that happens; `deque.append` is atomic with and without the GIL, so no
lock is needed and the callback may run inside any other operation.

A fork copies the consumer's views but not its books: the child would see the next batch appear in the memory of the
last. So a slot that is leased while the process forks is retired: its views stay valid in both processes for good,
and it is not used again. The engine that forks workers of its own holds the leases of that moment instead, as long as
these workers live: a dataset may well hold a batch.
Test: tests/transport/test_arena.py::test_a_slot_leased_during_a_fork_is_never_reused
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from feedline.transport.sparse import map_sparse

Bytes = NDArray[np.uint8]

_PAGE = mmap.PAGESIZE
_FEW_SLOTS = 8
"""Slots that may be in use before the size of a batch is known."""


class Arena:
    """Slots for the batches of one loader.

    Args:
        slot_count: how many batches can be under way or kept at once.
        shared: True to make the memory visible to worker processes; False for workers in this process.
        budget: bytes of slots that may be in use at once; beyond it `acquire` says no and batches travel in
            ordinary memory.
    """

    # Of the class: when a program ends, what modules hold is gone before the last arena is.
    _getpid = staticmethod(os.getpid)
    _close = staticmethod(os.close)

    def __init__(self, slot_count: int, *, shared: bool, budget: int) -> None:
        self.slot_count = slot_count
        self.shared = shared
        self.budget = budget
        self.pid = os.getpid()
        self.fd = -1  # first: there may be nothing to close
        self._map, self.slot_bytes, self.fd = map_sparse(slot_count, shared=shared)
        self.address = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        self._free: deque[int] = deque()
        self._opened = 0
        self._touched = [0] * slot_count
        self._total = 0
        self.refused = 0
        """Batches made in this process that had to be written elsewhere."""
        self._last_worker = [-1] * slot_count
        self._leases: dict[int, weakref.ref[Bytes]] = {}
        self._returners: dict[int, _Returner] = {}
        self._retired: set[int] = set()
        self._expected_bytes = 0
        self._opening = threading.Lock()
        self._on_growth: Callable[[int, int], None] | None = None
        self._before_reuse: Callable[[int], bool] | None = None
        self._on_release: Callable[[int], None] | None = None
        _arenas[id(self)] = self

    def __repr__(self) -> str:
        return (
            f"Arena(slots={self._opened}/{self.slot_count}, leased={self.leased_count}, "
            f"touched_bytes={self.touched_bytes}, budget={self.budget}, shared={self.shared})"
        )

    @property
    def touched_bytes(self) -> int:
        """Bytes of memory the slots have come to hold."""
        return self._total

    @property
    def leased_count(self) -> int:
        """Slots that the training loop holds views of."""
        return len(self._leases)

    @property
    def retired_count(self) -> int:
        """Slots that a fork of the consumer has put out of use."""
        return len(self._retired)

    def watch(
        self,
        *,
        on_growth: Callable[[int, int], None],
        on_release: Callable[[int], None],
        may_reuse: Callable[[int], bool],
    ) -> None:
        """Let a device follow the slots.

        Args:
            on_growth: called with a slot and its size when a batch reaches further into it than any before.
            on_release: called when the training loop has dropped a batch, on the thread that dropped it.
            may_reuse: asked before a slot is written again: copies from it may still be under way.
        """
        self._on_growth = on_growth
        self._on_release = on_release
        self._before_reuse = may_reuse

    @property
    def mapping(self) -> mmap.mmap:
        """The memory itself; it lives until the last view dies."""
        return self._map

    def available(self) -> bool:
        """True if `acquire` would find a slot."""
        return bool(self._free) or self._may_open()

    def _may_open(self) -> bool:
        if self._opened == 0 or self._opened >= self.slot_count:
            return self._opened == 0
        if not self._expected_bytes:  # nobody knows yet how large batches are
            return self._opened < max(_FEW_SLOTS, self.slot_count // 16)
        return max(self._total, self._opened * self._expected_bytes) + self._expected_bytes <= self.budget

    def acquire(self, worker: int = -1) -> int:
        """Take a free slot, preferably the one `worker` wrote last, whose pages it has mapped already.

        Returns:
            The slot's number, or -1 when all slots are taken or the budget is spent. Never blocks.
        """
        free = self._free
        for _ in range(len(free)):
            try:
                slot = free.pop()
            except IndexError:
                break
            if self._last_worker[slot] not in (worker, -1) and len(free) > 1:
                other = self._swap_for_own(slot, worker)
                slot = slot if other is None else other
            if self._before_reuse is not None and not self._before_reuse(slot):
                free.appendleft(slot)
                continue
            if self._total > self.budget:
                self._shrink(slot)
                if self._total and self._total + self._expected_bytes > self.budget:
                    free.appendleft(slot)
                    return -1
            self._last_worker[slot] = worker
            return slot
        with self._opening:  # thread workers take their slots themselves
            if not self._may_open():
                return -1
            slot = self._opened
            self._opened += 1
        self._last_worker[slot] = worker
        return slot

    def _shrink(self, slot: int) -> None:
        """Give the pages of a free slot back to the system: batches have grown since it was first used."""
        option = getattr(mmap, "MADV_REMOVE" if self.shared else "MADV_DONTNEED", None)
        if option is None or self._on_growth is not None or not self._touched[slot]:
            return  # pages that a device has registered stay
        self._map.madvise(option, slot * self.slot_bytes, self._touched[slot])
        self._total -= self._touched[slot]
        self._touched[slot] = 0

    def _swap_for_own(self, slot: int, worker: int) -> int | None:
        """Look for a free slot that `worker` wrote last; put `slot` back if there is one."""
        for candidate in self._free.copy():  # one step for other threads, unlike a loop over the deque
            if self._last_worker[candidate] == worker:
                try:
                    self._free.remove(candidate)
                except ValueError:
                    continue
                self._free.append(slot)
                return candidate
        return None

    def release(self, slot: int) -> None:
        """Give back a slot that was acquired and not leased."""
        if slot >= 0:
            self._free.append(slot)

    def view(self, slot: int, size: int | None = None) -> Bytes:
        """Return the slot's memory without any claim on it; for whoever has acquired it."""
        return np.frombuffer(self._map, np.uint8, self.slot_bytes if size is None else size, slot * self.slot_bytes)

    def lease(self, slot: int, used: int | None = None) -> Bytes:
        """Return the slot's memory as an array that gives the slot back when its last view dies.

        Args:
            slot: a slot that was acquired.
            used: how much of it has been written; None if that is still to come.
        """
        if used is not None:
            self.note_use(slot, used)
        size = self.slot_bytes if used is None else max(used, 1)
        array = np.frombuffer(self._map, np.uint8, size, slot * self.slot_bytes)
        returner = self._returners.get(slot)
        if returner is None:
            returner = self._returners[slot] = _Returner(self, slot)
        self._leases[slot] = weakref.ref(array, returner)
        return array

    def note_use(self, slot: int, used: int) -> None:
        """Remember how far a slot has been written."""
        pages = -(-used // _PAGE) * _PAGE
        if pages > self._touched[slot]:
            if self._on_growth is not None:
                self._on_growth(slot, pages)
            self._total += pages - self._touched[slot]
            self._touched[slot] = pages
            if pages > self._expected_bytes:
                self._expected_bytes = pages

    def _returned(self, slot: int) -> None:
        self._leases.pop(slot, None)
        if slot in self._retired or self._getpid() != self.pid:
            return
        try:
            if self._on_release is not None:
                self._on_release(slot)
        finally:
            self._free.append(slot)

    def retire_leased(self) -> None:
        """Put the slots that have views out of use; called just before the process forks."""
        self._retired.update(list(self._leases))

    def close(self) -> None:
        """Give up the descriptor. The memory itself goes when the last view of it dies."""
        if self.fd >= 0 and self._getpid() == self.pid:
            self._close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        self.close()


class _Returner:
    """Gives a slot back when its lease dies. Holds the arena weakly: views may outlive the loader."""

    __slots__ = ("arena", "slot")

    def __init__(self, arena: Arena, slot: int) -> None:
        self.arena = weakref.ref(arena)
        self.slot = slot

    def __call__(self, _: object) -> None:
        arena = self.arena()
        if arena is not None:
            arena._returned(self.slot)


_arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()


class _ForkState(threading.local):
    own: bool = False


_fork_state = _ForkState()


@contextmanager
def starting_workers() -> Iterator[None]:
    """Mark forks made by this thread inside the block as feedline's own: whoever makes them looks after the leases."""
    _fork_state.own = True
    try:
        yield
    finally:
        _fork_state.own = False


def leases() -> list[Bytes]:
    """Return every lease of shared memory in this process; whoever holds them keeps the slots from being used again."""
    arenas = [reference() for reference in _arenas.valuerefs()]  # lists: other threads go on meanwhile
    shared = [arena for arena in arenas if arena is not None and arena.shared]
    alive = [reference() for arena in shared for reference in list(arena._leases.values())]
    return [array for array in alive if array is not None]


def _before_fork() -> None:
    if _fork_state.own:
        return
    for reference in _arenas.valuerefs():  # a list: other threads may make arenas meanwhile
        arena = reference()
        if arena is not None and arena.shared:
            arena.retire_leased()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
