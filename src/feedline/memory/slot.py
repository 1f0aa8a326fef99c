"""One slot of an arena, the leases of its parts, and the device that copies from it."""

from __future__ import annotations

import weakref

from feedline.memory.reading import Bytes


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
