"""One piece of memory for all batches of a loader, cut into slots.

The arena is a sparse unnamed file (`memfd`), mapped once by the consumer and once by every worker. It is far larger
than what is ever used: a slot is a range of addresses, and only pages that a batch touched exist. So slots need no size
classes, a batch may grow from one step to the next, and pages stay warm because the most recently used slot is reused
first.

The states of a slot (all in the consumer's process; workers only get numbers):

    free --acquire--> busy: an owner has it, a batch is made and read --finish--> held --last array dies--> free
                        |                                                                                    ^
                        +--------------release, or finish if no array of the batch is a view-----------------+

Every large array of a batch has a lease: a NumPy array over its part of the slot, which everything derived from it
keeps alive. A weak reference reports its death, on whatever thread that happens. Its callback is the `append` of a
deque and nothing else: that is atomic with and without the GIL, may run inside any other operation, and runs no Python
code, so no interrupt can be lost in it. (Without the GIL, an array that is dropped by a thread other than the one that
made it may die later: when the thread that made it next runs Python code. Its slot is free from then on.) The next
operation processes dead leases; while no epoch is running (`rest`), Python code processes them at once. Slots are given
back in the same way: the garbage collector may do so in the middle of another operation on the same thread, so this
must never wait. A thread that finds the lock taken leaves the work to the holder, which checks again after it releases
the lock (`_process`). Every step may run twice, because an interrupt may come at any moment. While a process forks,
only the forking thread holds the lock.

Resident memory that is not in use (free slots, dropped parts of held slots, ends of slots that larger batches wrote) is
idle. The arena keeps as much idle memory as a window of the largest recent batches needs, so that pages stay warm; the
rest goes back to the system. So the program retains what it holds, plus one window.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from feedline.memory import forks
from feedline.memory.codec import LARGE_BYTES, Bytes, Reader
from feedline.memory.slot_table import Device, Lease, Slot, SlotTable
from feedline.memory.sparse import map_private, map_sparse
from feedline.system import interrupts

_PAGE = mmap.PAGESIZE


class Arena:
    """Slots for the batches of one loader.

    Args:
        slot_count: how many batches can be in flight or held by the program at once.
        shared: True to make the memory visible to worker processes; False for workers in this process.
        budget: bytes of slots that may be in use at once; beyond it `acquire` returns -1 and batches are sent in
            ordinary memory.
        window: how many batches are normally in flight.
        before_known: slots that may be in use before the size of a batch is known.
    """

    def __init__(self, slot_count: int, *, shared: bool, budget: int, window: int = 1, before_known: int = 8) -> None:
        self.slot_count = slot_count
        self.shared = shared
        self.fd = -1  # set first, so that `__del__` finds it if mapping fails
        self.pid = os.getpid()
        self.mapping, self.slot_bytes, self.fd = map_sparse(slot_count, shared=shared)
        """The memory itself, which lives until the last view dies; the size of a slot; the file."""
        self._table = SlotTable(
            self.mapping,
            self.slot_bytes,
            slot_count,
            shared=shared,
            budget=budget,
            window=window,
            before_known=before_known,
        )
        self.address = np.frombuffer(self.mapping, np.uint8, 1).__array_interface__["data"][0]
        self.refused = 0
        """Batches made in this process that had to be written elsewhere."""
        self.budget = budget
        self._dropped: deque[Lease] = deque()
        """Leases that have died and are not processed yet."""
        self._requests: deque[tuple[int, int | None, bool]] = deque()
        """Slots that are no longer busy: how far they were written, and whether their batch was delivered.

        The number of a slot is negative for a batch that needed none.
        """
        self._holder = 0
        """The thread that is in `acquire`."""
        self._watchers: list[Lease] = []
        self._lock = threading.Lock()
        self._users: list[weakref.finalize[..., object]] = []
        """Finalizers of the users; see `serve`."""
        forks.watch(self)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory behind the slots."""
        self._process()
        return self._table.resident

    @property
    def leased_count(self) -> int:
        """Number of slots with arrays that the training loop holds."""
        self._process()
        return sum(bool(slot.parts) for slot in self._table.slots)

    @property
    def busy_count(self) -> int:
        """Number of slots that have been acquired and neither released nor finished."""
        self._process()
        return len(self._table.busy)

    def follow(self, device: Device) -> None:
        """Notify a device of changes to the slots."""
        self._table.device = device

    # -- a slot for a task -------------------------------------------------------------------------------------------

    def available(self) -> int:
        """Return how many slots `acquire` would find."""
        if self._dropped or self._requests or forks.SEEN:
            self._process()
        return self._table.left()

    def acquire(self, worker: int = -1, owner: object = True) -> int:
        """Take a free slot, preferably the one that `worker` wrote last, whose pages it has mapped already.

        Args:
            worker: the worker that will write it.
            owner: a token of the object responsible for it; see `release_all`.

        Returns:
            The slot's number, or -1 if all slots are taken or the budget is exhausted. Never blocks.
        """
        thread = threading.get_ident()
        if self._holder == thread:
            return -1  # called by the garbage collector, in the middle of this thread's own `acquire`
        with self._lock:
            self._holder = thread
            try:
                table = self._table
                if self._dropped or self._requests or forks.SEEN:
                    self._process_locked()
                if table.cooling and not table.warm:
                    table.cool()
                if table.is_resting:  # an epoch is running again, so there will be a next operation
                    table.is_resting = False
                    self._watchers = []
                slot = table.take(worker, owner)
                self.refused += slot < 0 and not self.shared
                return slot
            finally:
                self._holder = 0

    def release(self, slot: int, used: int | None = None) -> None:
        """Give back a slot that no array refers to.

        Args:
            slot: its number; nothing happens if it is not busy, or negative.
            used: how far it has been written; None if unknown.
        """
        if slot >= 0:
            self._requests.append((slot, used, False))
            self._process()

    def release_all(self, owner: object) -> None:
        """Give back every slot that an owner has not given back. Leased parts of them stay leased."""
        # Without the lock: `list` copies the values of a dict in one step, with and without the GIL.
        for slot in list(self._table.busy.values()):
            if slot.owner is owner:
                self._requests.append((slot.number, None, False))
        self._process()

    def finish(self, slot: int) -> None:
        """End the leasing of parts of a slot: it becomes free when the last lease dies.

        Args:
            slot: its number; negative if a batch needed none: memory that is kept for others may no longer be needed.
        """
        self._requests.append((slot, 0, True))
        self._process()
        if self._table.is_closed:
            self.rest()

    @property
    def is_warm(self) -> bool:
        """True if memory is kept for future batches."""
        return bool(self._table.warm or self._dropped)

    # -- memory of a slot --------------------------------------------------------------------------------------------

    def view(self, slot: int, size: int | None = None) -> Bytes:
        """Return the slot's memory without a lease, for the code that acquired the slot."""
        return np.frombuffer(self.mapping, np.uint8, self.slot_bytes if size is None else size, slot * self.slot_bytes)

    def reader(self, slot: int, used: int) -> Reader:
        """Return a reader for the batch in a slot. Call `finish` after reading.

        All its arrays are copies if the program holds so much memory that the slot is needed for the next batch.
        """
        with self._lock:
            self._table.note_use(self._table.slots[slot], used)
            if used >= LARGE_BYTES:
                if self._dropped or self._requests:
                    self._process_locked()
                if self._table.left():
                    return Reader(self.view(slot, used), functools.partial(self.lease, slot))
        return Reader(self.view(slot, max(used, 1)))

    def lease(self, slot: int, start: int, size: int) -> Bytes:
        """Return a part of a busy slot as an array; the part is given back when the last view of the array dies.

        Args:
            slot: a slot that was acquired.
            start: where the part begins. Large arrays begin at a page boundary; parts of one array may share a page.
            size: its bytes.
        """
        array = np.frombuffer(self.mapping, np.uint8, size, slot * self.slot_bytes + start)
        lease = Lease(array, self._dropped.append)
        with self._lock:
            lease.slot, lease.start = self._table.slots[slot], start // _PAGE * _PAGE
            lease.size = -(-(start + size) // _PAGE) * _PAGE - lease.start
            self._table.lend(lease.slot, lease)
        return array

    def note_use(self, slot: int, used: int) -> None:
        """Record how far a busy slot has been written."""
        with self._lock:
            self._table.note_use(self._table.slots[slot], used)

    # -- dead leases, requests, and memory for the system ------------------------------------------------------------

    def _process(self) -> None:
        """Process requests and dead leases, or leave them to the thread that holds the lock, which checks again.

        The garbage collector may run this in the middle of any other operation, also on another arena. So it waits only
        for a thread that took the lock at this very moment, and that thread waits for no other.
        `acquire(blocking=False)` will not do: a signal that arrives as it returns would leave the lock taken forever.
        """
        while not self._lock.locked():
            with self._lock:
                self._process_locked()
            if not self._requests and not self._dropped:
                return

    def _process_locked(self) -> None:
        """Process requests and dead leases, also those seen by forked processes; free excess memory.

        An interrupted step is repeated, so everything here may run twice.
        """
        table = self._table
        if forks.SEEN:
            forks.release_ended()
        while self._requests:
            number, used, is_end = self._requests[0]
            busy = table.busy.get(number)
            if is_end and (busy is not None or number < 0):
                table.usage.end()
            if busy is not None:
                table.leave(busy, used)
            self._requests.popleft()
        while self._dropped:
            lease = self._dropped[0]
            slot: Slot | None = getattr(lease, "slot", None)  # not set if an interrupt came first
            if slot is not None:
                table.part_dropped(slot, lease.start)
            self._dropped.popleft()
        if table.is_resting:
            table.cool()
        table.trim()
        if table.is_closed and table.held:  # stay alive to return the pages of held arrays when these are dropped
            _closed[id(self)] = self
        elif table.is_closed and not table.busy:
            self._close_file()
            _closed.pop(id(self), None)

    # -- forking, resting and closing --------------------------------------------------------------------------------

    def leases(self) -> list[Bytes]:
        """Return the leased arrays, if other processes can see them; holding them keeps the slots from being reused."""
        if not self.shared:
            return []
        arrays: list[Bytes] = []
        for slot in list(self._table.slots):
            for lease in list(slot.parts.values()):
                if (array := lease()) is not None:
                    arrays.append(array)
        return arrays

    def make_private(self, leases: list[Bytes]) -> None:
        """Make leased arrays private to this process, in a fork of the one that owns the arena."""
        for array in leases:
            start = array.__array_interface__["data"][0] - self.address
            page = start // _PAGE * _PAGE
            map_private(self.address + page, start + array.nbytes - page, self.fd, page)

    def hold(self, timeout_s: float) -> bool:
        """Keep other threads from leasing or reusing slots until `let_go`; False on timeout."""
        return self._lock.acquire(timeout=timeout_s)

    def let_go(self) -> None:
        """Release the lock that `hold` took."""
        self._lock.release()
        if self._requests or self._dropped:  # left to this thread meanwhile
            self._process()

    def reset_in_child(self) -> None:
        """Reset the lock in a forked process, where its holder does not exist, and leave the parent's pages alone."""
        self._lock = threading.Lock()
        if self.shared:
            self._table.leave_alone()
        _closed.clear()

    def rest(self) -> None:
        """Note that no epoch is running. Dead leases are now processed at once: the next operation may be far off."""
        forks.release_ended(at_once=True)
        self._table.is_resting = True
        self._process()
        watchers = []
        for slot in list(self._table.held.values()):
            for lease in list(slot.parts.values()):
                array = lease()
                if array is None:
                    continue
                watcher = Lease(array, functools.partial(_notice, weakref.ref(self)))
                watcher.slot, watcher.start, watcher.size = slot, lease.start, lease.size
                watchers.append(watcher)
                del array
        self._watchers = watchers
        self._process()  # leases that died meanwhile have no watcher

    def close(self) -> None:
        """Free all memory except that of arrays still held, then the descriptor. May be called twice."""
        if os.getpid() == self.pid and not self._table.is_closed:
            for user in self._users:
                user.detach()
            self._table.is_closed = True
            self.rest()

    def _close_file(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def serve(self, user: object) -> None:
        """Stay open while `user` lives; the arena is closed when its last user dies.

        Closing it when the arena itself dies would be too late: the garbage collector may have cleared the leases.
        """
        finalizer = weakref.finalize(user, interrupts.see_through, self._dismiss)
        finalizer.atexit = False
        self._users.append(finalizer)

    def _dismiss(self) -> None:
        self._users = [user for user in self._users if user.alive]
        if not self._users:
            self.close()

    # A default, because at interpreter shutdown modules lose their contents before the last arena is deleted.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self.fd >= 0 and os.getpid() == self.pid:
            self._close_file()


def _notice(reference: weakref.ref[Arena], lease: Lease, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Process the death of a lease at once, or leave it to the thread that holds the lock."""
    arena = reference()
    if arena is not None and not is_finalizing() and os.getpid() == arena.pid:  # not in a fork, which owns nothing
        arena._dropped.append(lease)
        arena._process()


_closed: dict[int, Arena] = {}
"""Arenas that were closed while arrays were held."""
