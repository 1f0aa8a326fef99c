"""Which pages of an arena exist, how many of them are idle, and how these go back to the system."""

from __future__ import annotations

import mmap

from feedline.memory.slot import Device, Lease, Slot
from feedline.memory.sparse import HUGE_PAGES_FROM, advise_huge_pages

_SPAN_WINDOWS = 2
_SHORTEST_SPAN = 16

_IN_THE_LOOP = 2
"""Batches that the training loop has at a time: the one it works on, and the one before, until it is replaced."""


class Usage:
    """How much memory batches have needed lately, and so what is worth keeping warm.

    The largest batch, and the most batches in flight, are remembered for two spans of deliveries, each of two windows.
    So one large batch is prepared for while others like it may follow, and forgotten when none has come for a while.

    Args:
        window: how many batches are in flight in the usual course of things.
    """

    __slots__ = ("_before", "_count", "_now", "_span", "_window", "expected_bytes", "spans")

    def __init__(self, window: int) -> None:
        self._window = window
        self._span = max(_SHORTEST_SPAN, _SPAN_WINDOWS * window)
        self._count = 0
        self._now = [0, 0]
        """Bytes of the largest batch of this span; the most batches in flight."""
        self._before = [0, 0]
        self.spans = 0
        """How many spans are over."""
        self.expected_bytes = 0
        """How large the next batch may be; 0 if there was none yet."""

    @property
    def window_bytes(self) -> int:
        """What the batches in flight take, in the usual course of things."""
        return self._window * self.expected_bytes

    def note(self, size: int) -> None:
        """A batch of this size was made."""
        if size > self._now[0]:
            self._now[0] = size
            self.expected_bytes = max(size, self._before[0])

    def begin(self, in_flight: int) -> None:
        """A batch is about to be made, and with it so many are in flight."""
        if in_flight > self._now[1]:
            self._now[1] = in_flight

    def end(self) -> bool:
        """A batch was delivered. Returns True if another span begins with it."""
        self._count += 1
        if self._count < self._span:
            return False
        self._count = 0
        self.spans += 1
        self._before, self._now = self._now, [0, 0]
        self.expected_bytes = self._before[0]
        return True

    def spare_bytes(self, in_flight: int) -> int:
        """Return how much memory that nobody uses now will probably be used soon."""
        usual = max(self._window, self._now[1], self._before[1]) + _IN_THE_LOOP
        return max(0, usual - in_flight) * self.expected_bytes


_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20


class Residency:
    """Counts the pages behind the slots of one arena. Whoever calls it holds the arena's lock.

    Args:
        mapping: the memory.
        slot_bytes: the size of a slot.
        shared: True if other processes have mapped it as well.
        window: how many batches are in flight in the usual course of things.
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
        """Bytes of these that lie under living leases."""
        self.idle = 0
        """Bytes of these that serve nobody."""
        self.partial: dict[int, Slot] = {}
        """Slots of which a part is leased, and another idle."""

    def note_use(self, slot: Slot, used: int) -> None:
        """A slot has been written up to `used`."""
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

    def serve(self, slot: Slot) -> None:
        """All of a slot is in use."""
        self.idle -= slot.idle
        slot.idle = 0

    def recount(self, slot: Slot) -> None:
        """Find out how much of a slot is idle that is not busy."""
        # A device has registered slots as a whole: what lies beside arrays that are kept cannot be given back.
        whole = self.device is not None and slot.parts
        idle = 0 if whole else max(0, slot.resident - slot.live)
        self.idle += idle - slot.idle
        slot.idle = idle
        if idle and slot.parts:
            self.partial[slot.number] = slot
        elif self.partial:
            self.partial.pop(slot.number, None)

    def leave_alone(self) -> None:
        """Give nothing back any more: the pages are another process's."""
        self._option = None

    def drop(self, slot: Slot, lease: Lease) -> None:
        """A lease of a slot has died."""
        slot.live, self.live = slot.live - lease.size, self.live - lease.size  # no interrupt comes in between
        if not slot.parts and slot.live:  # an interrupt has spoilt the count
            self.live -= slot.live
            slot.live = 0

    def punch_part(self, slot: Slot, lease: Lease) -> None:
        """Give the pages of one part of a slot back to the system, as far as no other lease has them."""
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
        """Give the pages of a slot that serve nobody back to the system; False if that is not possible now."""
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
