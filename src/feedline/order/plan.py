"""The plan of an epoch, which is the contents of each batch from a given position on, and the progress in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from feedline.types import Draw, Position


@dataclass(slots=True)
class Progress:
    """Which batches of a plan the training loop has received. Written by the epoch, read when the state is saved."""

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
    outcome: Position | None = None
    """Where a stream that all workers read has ended, once the training loop has every batch."""
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


class Plan(ABC):
    """An iterator over the contents of batches. Batches are numbered from 0, from where the plan was entered.

    Used from the consumer's thread only.
    """

    goes_ahead = False
    """True if requesting batches early has no visible effect: the order follows from private numbers of the plan."""

    def __iter__(self) -> Plan:
        return self

    @abstractmethod
    def __next__(self) -> object:
        """Return the contents of the next batch."""

    @abstractmethod
    def draw(self, ordinal: int) -> Draw:
        """Return the source of random numbers for a batch."""

    def draw_after(self, progress: Progress) -> Draw:
        """Return the source of random numbers for what the consumer does with a batch, such as `device_transform=`.

        Args:
            progress: of the consumer, up to and including this batch.
        """
        return self.draw(progress.delivered + len(progress.early) - 1)

    @abstractmethod
    def state(self, done: int) -> dict[str, object]:
        """Return what is needed to enter the order after the first `done` batches of this plan, in plain values.

        "unit" is what is counted, "consumed" how many of these were consumed since the beginning of the epoch.
        """

    def last_state(self, done: int) -> dict[str, object]:
        """Return `state(done)` of a plan that is not continued, without drawing anything for it."""
        return self.state(done)

    def after(self) -> dict[str, object]:
        """Return what the plan of the next epoch needs, once this one is exhausted."""
        return {}
