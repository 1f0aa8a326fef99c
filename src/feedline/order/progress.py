"""How far the training loop is in an epoch. Written by the epoch, read when the state is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from feedline.types import Position


@dataclass(slots=True)
class Progress:
    """Which batches of a plan the training loop has received."""

    delivered: int = 0
    """The length of the complete prefix: all batches below this number."""
    early: set[int] = field(default_factory=set)
    """Batches after the prefix, delivered out of order."""
    ended: bool = False
    positions: dict[int, Position] = field(default_factory=dict)
    """Where each worker was after the last of its batches that was delivered, or where it began."""
    turn: int = 0
    """The number of the stream that is next."""
    read: int | None = None
    """Samples taken from the stream of an iteration without workers."""
    missing: int = 0
    """Batches among these that were not delivered: no sample of them was left, or an exception was raised instead."""
    faults: tuple[int, int, int] | None = None
    """The account of faults as of these batches, if others may have been requested since."""

    def count(self) -> int:
        """Return how many batches the training loop received, in or out of order, or from all streams."""
        return self.delivered + len(self.early) + self.streamed() - self.missing

    def streamed(self) -> int:
        """Return how many batches came from workers' own streams."""
        return sum(position.batches for position in self.positions.values())

    def note(self, ordinal: int) -> None:
        """Note that a batch was delivered. The last assignment does it: see `delivery/driver/caller_lock.py`."""
        if ordinal == self.delivered and not self.early:
            self.delivered = ordinal + 1
        elif ordinal >= self.delivered:
            delivered, early = self.delivered, {*self.early, ordinal}
            while delivered in early:
                early.remove(delivered)
                delivered += 1
            self.delivered, self.early = delivered, early

    def copy(self) -> Progress:
        """Return a copy, which does not change with this one."""
        return replace(self, early=set(self.early), positions=dict(self.positions))
