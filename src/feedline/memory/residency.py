"""Which pages of an arena exist, how many of them are idle, and how they are returned to the system."""

from __future__ import annotations

import mmap

from feedline.memory.slot import Device, Lease, Slot
from feedline.memory.sparse import HUGE_PAGES_FROM, advise_huge_pages

_SPAN_WINDOWS = 2
_SHORTEST_SPAN = 16

_IN_THE_LOOP = 2
"""Batches that the training loop holds at a time: the current one, and the previous one until it is replaced."""


class Usage:
    """How much memory batches have needed recently, and so how much is worth keeping warm.

    The largest batch, and the most batches in flight, are remembered for two spans of deliveries, each of two windows.
    So after one large batch there is memory for more of them, until none has come for a while.

    Args:
        window: how many batches are normally in flight.
    """

    __slots__ = ("_before", "_count", "_now", "_span", "_window", "expected_bytes", "spans")

    def __init__(self, window: int) -> None:
        self._window = window
        self._span = max(_SHORTEST_SPAN, _SPAN_WINDOWS * window)
        self._count = 0
        self._now = [0, 0]
        """In this span: bytes of the largest batch, and the most batches in flight."""
        self._before = [0, 0]
        self.spans = 0
        """Number of spans that have ended."""
        self.expected_bytes = 0
        """The largest expected size of the next batch; 0 before the first one."""

    @property
    def window_bytes(self) -> int:
        """Memory of the batches that are normally in flight."""
        return self._window * self.expected_bytes

    def note(self, size: int) -> None:
        """Record the size of a batch that was made."""
        if size > self._now[0]:
            self._now[0] = size
            self.expected_bytes = max(size, self._before[0])

    def begin(self, in_flight: int) -> None:
        """Record the number of batches in flight, including one that is about to be made."""
        if in_flight > self._now[1]:
            self._now[1] = in_flight

    def end(self) -> bool:
        """Count a delivered batch. Returns True if it begins another span."""
        self._count += 1
        if self._count < self._span:
            return False
        self._count = 0
        self.spans += 1
        self._before, self._now = self._now, [0, 0]
        self.expected_bytes = self._before[0]
        return True

    def spare_bytes(self, in_flight: int) -> int:
        """Return how much memory that is unused now will probably be used soon."""
        usual = max(self._window, self._now[1], self._before[1]) + _IN_THE_LOOP
        return max(0, usual - in_flight) * self.expected_bytes


_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20


class Residency:
    """Counts the pages behind the slots of one arena. The caller must hold the arena's lock.

    Args:
        mapping: the memory.
        slot_bytes: the size of a slot.
        shared: True if other processes have mapped it as well.
        window: how many batches are normally in flight.
    """

    def __init__(self, mapping: mmap.mmap, slot_bytes: int, *, shared: bool, window: int) -> None:
        self._map = mapping
        self._slot_bytes = slot_bytes
        self._option = getattr(mmap, "MADV_REMOVE" if shared else "MADV_DONTNEED", None)
        self._granule = _PAGE
        self.usage = Usage(window)
        self.device: Device | None = None
        self.resident = 0
        """Bytes of pages that exist, at most."""
        self.live = 0
        """The part of `resident` under living leases."""
        self.idle = 0
        """The part of `resident` that is unused."""
        self.partial: dict[int, Slot] = {}
        """Slots with a leased part and an idle one."""

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

    def recount(self, slot: Slot) -> None:
        """Count the idle bytes of a slot that is not busy."""
        # A device registers whole slots, so pages beside arrays that are still held cannot be freed.
        whole = self.device is not None and slot.parts
        idle = 0 if whole else max(0, slot.resident - slot.live)
        self.idle += idle - slot.idle
        slot.idle = idle
        if idle and slot.parts:
            self.partial[slot.number] = slot
        elif self.partial:
            self.partial.pop(slot.number, None)

    def leave_alone(self) -> None:
        """Stop freeing pages: they belong to another process."""
        self._option = None

    def drop(self, slot: Slot, lease: Lease) -> None:
        """Subtract a lease of a slot that has died."""
        slot.live, self.live = slot.live - lease.size, self.live - lease.size  # no interrupt can come in between
        if not slot.parts and slot.live:  # an interrupt has corrupted the count
            self.live -= slot.live
            slot.live = 0

    def punch_part(self, slot: Slot, lease: Lease) -> None:
        """Return the pages of one part of a slot to the system, except those shared with another lease."""
        if self._option is None:
            return
        start, stop = slot.alone(lease)
        if stop > start:
            self._map.madvise(self._option, slot.number * self._slot_bytes + start, stop - start)
            gone = min(stop - start, slot.resident - slot.live)
            slot.resident -= gone
            self.resident -= gone
            self.recount(slot)

    def punch(self, slot: Slot) -> bool:
        """Return the unused pages of a slot to the system; False if that is not possible now."""
        if self._option is None or (self.device is not None and not self.device.shrink(slot.number)):
            return False
        for start, stop in slot.gaps(self._slot_bytes if slot.unsure else slot.reach):
            self._map.madvise(self._option, slot.number * self._slot_bytes + start, stop - start)
        slot.unsure = False
        slot.reach = max((first + lease.size for first, lease in slot.parts.items()), default=0)
        self.resident += slot.live - slot.resident
        slot.resident = slot.live
        self.recount(slot)
        return True
