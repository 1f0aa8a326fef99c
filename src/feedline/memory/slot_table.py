"""The slots of an arena: which are free, busy or held, which one is next, and which of their pages exist.

Also the state of one slot, the leases of its parts, and the interface to a device that copies from slots.
"""

from __future__ import annotations

import mmap
import weakref

from feedline.memory.codec import Bytes
from feedline.memory.sparse import HUGE_PAGES_FROM, advise_huge_pages

SLACK_BYTES = 16 << 20
"""Idle memory that is always kept: freeing less is not worth a system call."""

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20

_SPAN_WINDOWS = 2
_SHORTEST_SPAN = 16

_IN_THE_LOOP = 2
"""Batches that the training loop holds at a time: the current one, and the previous one until it is replaced."""


class Slot:
    """The state of one slot. Only its arena changes it."""

    __slots__ = ("idle", "lent", "live", "number", "owner", "parts", "reach", "resident", "worker")

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner: object = None
        self.worker = -1
        """The worker that wrote it last, and has its pages mapped."""
        self.parts: dict[int, Lease] = {}
        """Leases, by their start."""
        self.live = 0
        """Bytes of pages under living leases."""
        self.lent = False
        """True if parts were leased since it was last free."""
        self.reach = 0
        """How far it has been written since its pages were last freed."""
        self.resident = 0
        """Bytes of its pages that exist, at most."""
        self.idle = 0
        """The part of `resident` that is unused."""

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the ranges of pages (start, end) that no living lease covers."""
        gaps, start = [], 0
        for first, lease in sorted(self.parts.items()):
            if first > start:
                gaps.append((start, first))
            start = max(start, first + lease.size)
        return [*gaps, (start, end)] if end > start else gaps


class Lease(weakref.ref[Bytes]):
    """Reports the death of the last array over a part of a slot."""

    __slots__ = ("size", "slot", "start")

    slot: Slot
    start: int
    size: int
    """In whole pages."""


class Device:
    """A device that copies from slots. Subclass and override."""

    def on_growth(self, slot: int, size: int) -> None:
        """React to a batch that reaches further into a slot than any before: `size` bytes."""

    def on_release(self, slot: int) -> None:
        """React to the training loop dropping the batch in a slot."""

    def may_reuse(self, slot: int) -> bool:
        """True if no copy from the slot is running, so that it may be written again."""
        return True

    def shrink(self, slot: int) -> bool:
        """Unregister a slot whose pages are returned to the system; False if that is not possible now."""
        return True


class Usage:
    """How much memory batches have needed recently, and so how much is worth keeping warm.

    The largest batch is remembered for two spans of deliveries, each of two windows. So after one large batch there is
    memory for more of them, until none has come for a while.

    Args:
        window: how many batches are normally in flight.
    """

    __slots__ = ("_before", "_count", "_now", "_span", "_window", "expected_bytes")

    def __init__(self, window: int) -> None:
        self._window = window
        self._span = max(_SHORTEST_SPAN, _SPAN_WINDOWS * window)
        self._count = 0
        self._now = 0
        """Bytes of the largest batch in this span."""
        self._before = 0
        """The same for the previous span."""
        self.expected_bytes = 0
        """The largest expected size of the next batch; 0 before the first one."""

    @property
    def window_bytes(self) -> int:
        """Memory of the batches that are normally in flight."""
        return self._window * self.expected_bytes

    def note(self, size: int) -> None:
        """Record the size of a batch that was made."""
        if size > self._now:
            self._now = size
            self.expected_bytes = max(size, self._before)

    def end(self) -> None:
        """Count a delivered batch."""
        self._count += 1
        if self._count >= self._span:
            self._count = 0
            self._before, self._now = self._now, 0
            self.expected_bytes = self._before

    def spare_bytes(self, in_flight: int) -> int:
        """Return how much memory that is unused now will probably be used soon."""
        return max(0, self._window + _IN_THE_LOOP - in_flight) * self.expected_bytes


class SlotTable:
    """The bookkeeping of an arena. The caller of a method must hold the arena's lock.

    Any step may be interrupted and repeated, so the order of the assignments matters: a slot in `busy` counts as busy,
    even if it is also listed as free.

    Args:
        mapping: the memory.
        slot_bytes: the size of a slot.
        slot_count: the maximum number of slots.
        shared: True if other processes have mapped the memory as well.
        budget: bytes of slots that may be in use at once.
        window: how many batches are normally in flight.
        before_known: slots that may be in use before the size of a batch is known.
    """

    def __init__(
        self,
        mapping: mmap.mmap,
        slot_bytes: int,
        slot_count: int,
        *,
        shared: bool,
        budget: int,
        window: int,
        before_known: int,
    ) -> None:
        self.slot_count = slot_count
        self.budget = budget
        self.slots: list[Slot] = []
        self.busy: dict[int, Slot] = {}
        self.held: dict[int, Slot] = {}
        self.warm: dict[int, Slot] = {}
        """Free slots with pages, the most recently used one last."""
        self.cold: dict[int, Slot] = {}
        """Free slots without pages."""
        self.cooling: dict[int, Slot] = {}
        """Free slots from which the device may still be copying."""
        self.usage = Usage(window)
        self.device: Device | None = None
        self.is_closed = False
        self.is_resting = False
        """True while no epoch is running."""
        self.resident = 0
        """Bytes of pages that exist, at most."""
        self.live = 0
        """The part of `resident` under living leases."""
        self.idle = 0
        """The part of `resident` that is unused."""
        self._before_known = before_known
        self._map = mapping
        self._slot_bytes = slot_bytes
        self._advice: int | None = getattr(mmap, "MADV_REMOVE" if shared else "MADV_DONTNEED", None)
        self._granule = _PAGE

    # -- a slot for a task -------------------------------------------------------------------------------------------

    def left(self) -> int:
        """Return how many slots can be taken."""
        free = len(self.warm) + len(self.cold) + self.slot_count - len(self.slots)
        if not free and self.cooling:
            self.cool()
            free = len(self.warm)
        return 0 if self.is_closed else min(free, self._affordable())

    def take(self, worker: int, owner: object) -> int:
        """Take a slot; returns its number, or -1 if there is none."""
        slot = self._find(worker)
        if slot is None:
            return -1
        number = slot.number
        if number == len(self.slots):
            self.cold[number] = slot
            self.slots.append(slot)
        slot.owner = owner
        self.busy[number] = slot  # before it is removed from the free ones
        self.warm.pop(number, None)
        self.cold.pop(number, None)
        self.cooling.pop(number, None)
        slot.worker = worker
        self.idle -= slot.idle
        slot.idle = 0
        left = self.budget - self.live - len(self.busy) * self.usage.expected_bytes
        if self.idle > left:
            self._trim(max(0, left))
        return number

    def _find(self, worker: int) -> Slot | None:
        """Choose a slot that may be written to; None if there is none, or no memory for it."""
        if self.is_closed or not self._affordable():
            return None
        slot: Slot | None = None
        for candidate in reversed(self.warm.values()):
            if candidate.number in self.busy:
                continue
            if candidate.worker == worker or candidate.worker < 0:
                return candidate
            slot = slot or candidate
        # In another worker's slot, this worker would fault in every page once more.
        for candidate in self.cooling.values():
            if candidate.worker == worker and candidate.number not in self.busy:
                if self.device is None or self.device.may_reuse(candidate.number):
                    return candidate
                break  # copies from slots released after it are still running too
        if slot is not None:
            return slot
        for candidate in self.cold.values():
            if candidate.number not in self.busy:
                return candidate
        return Slot(len(self.slots)) if len(self.slots) < self.slot_count else None

    def _affordable(self) -> int:
        """Return how many more batches the budget allows, once idle pages have been given back."""
        expected, busy_count = self.usage.expected_bytes, len(self.busy)
        count = (self.budget - self.live) // expected if expected else self._before_known
        least = 0 if busy_count or self.held else 1  # whatever its size: training could not continue otherwise
        return max(least, count - busy_count)

    # -- slots that come back ----------------------------------------------------------------------------------------

    def note_use(self, slot: Slot, used: int) -> None:
        """Record that a slot has been written up to `used`."""
        if used >= HUGE_PAGES_FROM and self._granule == _PAGE:
            self._granule = _HUGE_PAGE
            advise_huge_pages(self._map)
        self.usage.note(-(-used // _PAGE) * _PAGE)
        pages = min(-(-used // self._granule) * self._granule, self._slot_bytes)
        if pages > slot.reach or pages > slot.resident:
            if self.device is not None and pages > slot.reach:
                self.device.on_growth(slot.number, pages)
            slot.reach = max(slot.reach, pages)
            self.resident += slot.reach - slot.resident
            slot.resident = slot.reach

    def lend(self, slot: Slot, lease: Lease) -> None:
        """Add a lease of a part of a busy slot."""
        slot.parts[lease.start] = lease
        slot.live += lease.size
        slot.lent = True
        self.live += lease.size

    def leave(self, slot: Slot, used: int | None) -> None:
        """Move a busy slot to held or free.

        Args:
            slot: the slot.
            used: how far it has been written; None if unknown, because a task failed or its worker died.
        """
        if used:
            self.note_use(slot, used)
        slot.owner = None
        if used is None:
            self._punch(slot, self._slot_bytes)
        if slot.parts:
            self.held[slot.number] = slot
        else:
            self._free(slot)
        del self.busy[slot.number]  # last: until now it counts as busy
        self._recount(slot)

    def part_dropped(self, slot: Slot, start: int) -> None:
        """Subtract a lease that has died, and free its slot if it was the last one."""
        known = slot.parts.get(start)
        if known is not None and known() is None:
            del slot.parts[start]
            slot.live, self.live = slot.live - known.size, self.live - known.size  # no interrupt can come in between
            if not slot.parts and slot.live:  # an interrupt has corrupted the count
                self.live -= slot.live
                slot.live = 0
        if slot.number in self.busy:
            return
        if not slot.parts and slot.number in self.held:
            self._free(slot)
            del self.held[slot.number]
        self._recount(slot)

    def _free(self, slot: Slot) -> None:
        """Free a slot that no array refers to any more; the device may still be copying from it."""
        if slot.lent and self.device is not None:
            self.device.on_release(slot.number)
            self.cooling[slot.number] = slot
        else:
            (self.warm if slot.resident else self.cold)[slot.number] = slot
        slot.lent = False

    def cool(self) -> None:
        """Take back slots from which the device has finished copying; copies end in the order in which they began."""
        while self.cooling:
            slot = next(iter(self.cooling.values()))
            if self.device is not None and not self.device.may_reuse(slot.number):
                return
            self.warm[slot.number] = slot
            del self.cooling[slot.number]

    # -- pages that go back to the system ----------------------------------------------------------------------------

    def _recount(self, slot: Slot) -> None:
        """Count the idle bytes of a slot that is not busy."""
        # A device registers whole slots, so pages beside arrays that are still held cannot be freed.
        is_pinned = self.device is not None and slot.parts
        idle = 0 if is_pinned else max(0, slot.resident - slot.live)
        self.idle += idle - slot.idle
        slot.idle = idle

    def trim(self) -> None:
        """Return to the system what exceeds the memory that will probably be used soon."""
        if self.is_closed:
            self._trim(0)
        elif self.is_resting and not self.busy:
            self._trim(self.usage.window_bytes * (1 if self.device is None else 2))
        elif self.device is None and self.idle > SLACK_BYTES:  # registering pages is slow: not during an epoch
            self._trim(SLACK_BYTES + self.usage.spare_bytes(len(self.busy)))

    def _trim(self, limit: int) -> None:
        """Return idle pages to the system until at most `limit` bytes are left."""
        if self.idle <= limit:
            return
        # Pages beside arrays that are still held cannot be reused before these are dropped, so they go first.
        for slot in [*self.held.values(), *self.warm.values()]:
            if slot.idle and slot.number not in self.busy:
                self._punch(slot, slot.reach)
                if self.idle <= limit:
                    break

    def _punch(self, slot: Slot, end: int) -> None:
        """Return the unused pages of a slot, up to `end`, to the system."""
        if self._advice is None or (self.device is not None and not self.device.shrink(slot.number)):
            return
        for start, stop in slot.gaps(end):
            self._map.madvise(self._advice, slot.number * self._slot_bytes + start, stop - start)
        slot.reach = max((first + lease.size for first, lease in slot.parts.items()), default=0)
        self.resident += slot.live - slot.resident
        slot.resident = slot.live
        self._recount(slot)
        if slot.number in self.warm:
            self.cold[slot.number] = self.warm.pop(slot.number)

    def leave_alone(self) -> None:
        """Stop freeing pages: they belong to another process."""
        self._advice = None
