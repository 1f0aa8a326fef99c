"""Slot ownership in an arena: which slots are free, busy or held, and which one is next. See `Arena`."""

from __future__ import annotations

from feedline.memory.residency import Residency
from feedline.memory.slot import Slot

SLACK_BYTES = 16 << 20
"""Idle memory that is always kept: freeing less is not worth a system call."""


class Ownership:
    """Base of `Arena`: its bookkeeping. The caller of a method must hold the arena's lock.

    Args:
        pages: the pages of all slots.
        slot_count: the maximum number of slots.
        budget: bytes of slots that may be in use at once.
        before_known: slots that may be in use before the size of a batch is known.
    """

    def __init__(self, pages: Residency, slot_count: int, budget: int, before_known: int) -> None:
        self.slot_count = slot_count
        self.budget = budget
        self._closed = False
        self._is_resting = False
        self._slots: list[Slot] = []
        self._busy: dict[int, Slot] = {}
        self._held: dict[int, Slot] = {}
        self._warm: dict[int, Slot] = {}
        """Free slots with pages, the most recently used one last."""
        self._cold: dict[int, Slot] = {}
        """Free slots without pages."""
        self._cooling: dict[int, Slot] = {}
        """Free slots from which the device may still be copying."""
        self._pages = pages
        self._usage = self._pages.usage
        self._before_known = before_known

    def _left(self) -> int:
        """Return how many slots can be taken."""
        free = len(self._warm) + len(self._cold) + self.slot_count - len(self._slots)
        if not free and self._cooling:
            self._cool()
            free = len(self._warm)
        return 0 if self._closed else min(free, self._affordable())

    def _take(self, worker: int, owner: object) -> int:
        """Take a slot; returns its number, or -1 if there is none."""
        slot = self._find(worker)
        if slot is None:
            return -1
        # In this order, because an interrupt may come at any moment: a slot in `_busy` counts as busy even if it is
        # listed as free.
        number = slot.number
        if number == len(self._slots):
            self._cold[number] = slot
            self._slots.append(slot)
        slot.owner = owner
        self._busy[number] = slot
        self._warm.pop(number, None)
        self._cold.pop(number, None)
        self._cooling.pop(number, None)
        slot.worker = worker
        self._pages.idle -= slot.idle
        slot.idle = 0
        usage = self._usage
        usage.begin(len(self._busy))
        left = self.budget - self._pages.live - len(self._busy) * usage.expected_bytes
        if self._pages.idle > left:
            self._trim(max(0, left))
        return number

    def _find(self, worker: int) -> Slot | None:
        """Choose a slot that may be written to; None if there is none, or no memory for it."""
        if self._closed or not self._affordable():
            return None
        slot: Slot | None = None
        for candidate in reversed(self._warm.values()):
            if candidate.number in self._busy:
                continue
            if candidate.worker == worker or candidate.worker < 0:
                return candidate
            slot = slot or candidate
        # In another worker's slot, this worker would fault in every page once more.
        for candidate in self._cooling.values():
            if candidate.worker == worker and candidate.number not in self._busy:
                if self._pages.device is None or self._pages.device.may_reuse(candidate.number):
                    return candidate
                break  # copies from slots released after it are still running too
        if slot is not None:
            return slot
        for candidate in self._cold.values():
            if candidate.number not in self._busy:
                return candidate
        return Slot(len(self._slots)) if len(self._slots) < self.slot_count else None

    def _affordable(self) -> int:
        """Return how many more batches the budget allows, once idle pages have been given back."""
        expected, busy_count = self._usage.expected_bytes, len(self._busy)
        count = (self.budget - self._pages.live) // expected if expected else self._before_known
        least = 0 if busy_count or self._held else 1  # whatever its size: training could not continue otherwise
        return max(least, count - busy_count)

    def _leave(self, slot: Slot, used: int | None) -> None:
        """Move a busy slot to held or free."""
        slot.unsure = used is None
        if used:
            self._pages.note_use(slot, used)
        slot.owner = None
        if slot.parts:
            self._held[slot.number] = slot
        else:
            self._free(slot)
        del self._busy[slot.number]  # last: until now it counts as busy
        self._pages.recount(slot)
        if slot.unsure:
            self._punch(slot)

    def _free(self, slot: Slot) -> None:
        """Free a slot that no array refers to any more; the device may still be copying from it."""
        if slot.lent and self._pages.device is not None:
            self._pages.device.on_release(slot.number)
            self._cooling[slot.number] = slot
        else:
            (self._warm if slot.resident or slot.unsure else self._cold)[slot.number] = slot
        slot.lent = False

    def _cool(self) -> None:
        """Take back slots from which the device has finished copying; copies end in the order in which they began."""
        while self._cooling:
            slot = next(iter(self._cooling.values()))
            if self._pages.device is not None and not self._pages.device.may_reuse(slot.number):
                return
            self._warm[slot.number] = slot
            del self._cooling[slot.number]

    def _part_dropped(self, slot: Slot, start: int) -> None:
        known = slot.parts.get(start)
        if known is not None and known() is None:
            del slot.parts[start]
            self._pages.drop(slot, known)
        if slot.number in self._busy:
            return
        if not slot.parts and slot.number in self._held:
            self._free(slot)
            del self._held[slot.number]
        self._pages.recount(slot)
        if self._closed and slot.parts and known is not None and self._pages.device is None:
            self._pages.punch_part(slot, known)

    def _trim_idle(self) -> None:
        if self._closed:
            self._trim(0)
        elif self._is_resting and not self._busy:
            self._trim(self._usage.window_bytes * (1 if self._pages.device is None else 2))
        elif self._pages.device is None:  # registering pages with a device is slow: not during an epoch
            self._trim(SLACK_BYTES + self._usage.spare_bytes(len(self._busy)))

    def _trim(self, limit: int) -> None:
        """Return idle pages to the system until at most `limit` bytes are left."""
        if self._pages.idle <= limit:
            return
        # Pages beside arrays that are still held cannot be reused before these are dropped, so they go first.
        for slot in [*self._pages.partial.values(), *self._warm.values()]:
            if slot.idle and slot.number not in self._busy:
                self._punch(slot)
                if self._pages.idle <= limit:
                    break

    def _punch(self, slot: Slot) -> None:
        """Return the unused pages of a slot to the system."""
        if self._pages.punch(slot) and slot.number in self._warm:
            self._cold[slot.number] = self._warm.pop(slot.number)
