"""How far the training loop is in an epoch. Written by the epoch, read when the state is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from feedline.types import Notes


@dataclass(slots=True)
class StreamProgress:
    """How far one worker's own stream is."""

    batches: int = 0
    """Batches of it that the training loop has."""
    ended: bool = False
    notes: Notes | None = None
    """The last states that came with one of these batches."""
    noted_at: int = 0
    """Which batch that was."""
    read: int | None = None
    """Samples that these batches took from the stream, if that is known: some may have been left out."""


def has_state(notes: Notes) -> bool:
    """True if notes hold a state of the dataset or its iterator."""
    return notes.dataset is not None or notes.iterator is not None


@dataclass(slots=True)
class Progress:
    """Which batches of a plan the training loop has."""

    delivered: int = 0
    """The first so many."""
    early: set[int] = field(default_factory=set)
    """And these, out of turn."""
    ended: bool = False
    notes: dict[int, Notes] = field(default_factory=dict)
    """The last states of each worker's dataset that came with a batch."""
    streams: list[StreamProgress] = field(default_factory=list)
    """If each worker has a stream of its own."""
    turn: int = 0
    """Whose stream comes next."""
    read: int | None = None
    """Samples that were taken from the one stream of an iteration without workers."""
    missing: int = 0
    """Batches among all these that nobody got: no sample was left of them, or an exception came instead."""
    faults: tuple[int, int, int] | None = None
    """How far the account of faults was with these batches, if others may have been asked for since."""

    def count(self) -> int:
        """Return how many batches the training loop got, of the plan and out of turn, or of all streams."""
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
        """Forget that a batch was delivered, if it was noted: an interrupt kept it from the training loop."""
        self.early.discard(ordinal)
        if ordinal < self.delivered:
            self.early.update(range(ordinal + 1, self.delivered))
            self.delivered = ordinal

    def copy(self) -> Progress:
        """Return how far the training loop is now, which stays so."""
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
        """Say what another one says; what it holds is this one's from now on."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
