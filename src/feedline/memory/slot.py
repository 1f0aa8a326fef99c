"""One slot of an arena, the leases of its parts, and the device that copies from it."""

from __future__ import annotations

import mmap
import weakref

from feedline.memory.reading import Bytes

_PAGE = mmap.PAGESIZE


class Slot:
    """What is known of one slot. Changed by its arena only."""

    __slots__ = ("idle", "lent", "live", "number", "owner", "parts", "reach", "resident", "unsure", "worker")

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner: object = None
        self.worker = -1
        """Who wrote it last, and has its pages mapped."""
        self.parts: dict[int, Lease] = {}
        """Leases, by where they begin."""
        self.live = 0
        """Bytes of pages under living leases."""
        self.lent = False
        """True if there were leases since it was last free."""
        self.reach = 0
        """How far it has been written since it was last punched."""
        self.resident = 0
        """Bytes of its pages that exist, at most."""
        self.idle = 0
        """Bytes of these that serve nobody."""
        self.unsure = False
        """True if somebody may have written further than is known: a task that failed, a worker that died."""

    def alone(self, lease: Lease) -> tuple[int, int]:
        """Return the pages (start, end) of a lease that died which no neighbour has, too."""
        start, stop = lease.start, lease.start + lease.size
        return start + _PAGE * lease.is_cut, stop - _PAGE * (stop - _PAGE in self.parts)

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the ranges of pages (start, end) that no living lease covers."""
        gaps, start = [], 0
        for first, lease in sorted(self.parts.items()):
            if first > start:
                gaps.append((start, first))
            start = max(start, first + lease.size)
        return [*gaps, (start, end)] if end > start else gaps


class Lease(weakref.ref[Bytes]):
    """Tells when the last array over a part of a slot has died."""

    __slots__ = ("is_cut", "size", "slot", "start")

    slot: Slot
    start: int
    size: int
    """In whole pages."""
    is_cut: bool
    """True if it does not begin with its first page, which may be another array's last one."""


class Device:
    """A device that copies from slots. Subclass and override."""

    def on_growth(self, slot: int, size: int) -> None:
        """A batch reaches further into a slot than any before: `size` bytes."""

    def on_release(self, slot: int) -> None:
        """The training loop has dropped the batch in a slot."""

    def may_reuse(self, slot: int) -> bool:
        """Say whether a slot may be written again: copies from it may still be under way."""
        return True

    def shrink(self, slot: int) -> bool:
        """Let go of a slot whose pages go back to the system; False if that is not possible now."""
        return True
