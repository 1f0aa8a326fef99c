"""How far the training loop is in an epoch. Written by the epoch, read when the state is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from feedline.types import Notes


@dataclass(slots=True)
class StreamProgress:
    """How far the training loop is in one worker's own stream."""

    batches: int = 0
    """Batches of the stream that the training loop has received."""
    ended: bool = False
    notes: Notes | None = None
    """The last states that arrived with one of these batches."""
    noted_at: int = 0
    """The number of that batch."""
    read: int | None = None
    """Samples that these batches took from the stream, if known: some may have been skipped."""


def has_state(notes: Notes) -> bool:
    """True if notes hold a state of the dataset or its iterator."""
    return notes.dataset is not None or notes.iterator is not None


@dataclass(slots=True)
class Progress:
    """Which batches of a plan the training loop has received."""

    delivered: int = 0
    """The length of the complete prefix: all batches below this number."""
    early: set[int] = field(default_factory=set)
    """Batches after the prefix, delivered out of order."""
    ended: bool = False
    notes: dict[int, Notes] = field(default_factory=dict)
    """The last states of each worker's dataset that arrived with a batch."""
    streams: list[StreamProgress] = field(default_factory=list)
    """Used if each worker has its own stream."""
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
        return self.delivered + len(self.early) + sum(stream.batches for stream in self.streams) - self.missing

    def note(self, ordinal: int) -> None:
        """Note that a batch was delivered."""
        if ordinal != self.delivered:
            if ordinal > self.delivered:  # otherwise an interrupt came after it was noted, and it was made again
                self.early.add(ordinal)
            return
        self.delivered += 1
        while self.early and self.delivered in self.early:
            self.early.remove(self.delivered)
            self.delivered += 1

    def forget(self, ordinal: int) -> None:
        """Undo `note`, if the batch was noted: an interrupt kept it from the training loop."""
        self.early.discard(ordinal)
        if ordinal < self.delivered:
            self.early.update(range(ordinal + 1, self.delivered))
            self.delivered = ordinal

    def copy(self) -> Progress:
        """Return a copy, which does not change with this one."""
        return Progress(
            self.delivered,
            set(self.early),
            self.ended,
            dict(self.notes),
            [replace(stream) for stream in self.streams],
            self.turn,
            self.read,
            self.missing,
            self.faults,
        )

    def become(self, other: Progress) -> None:
        """Take over the values of another `Progress`, including its containers."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
