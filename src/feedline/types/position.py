"""How far one stream is, or one worker's copy of a dataset."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(slots=True)
class Position:
    """How far one stream is: a worker's own, the one that all workers read, or that of a loader without workers.

    It comes with every answer that has states, and the last delivered ones are what `state_dict()` saves. Resuming sets
    it: a worker restores the states, and skips what was read since. For a map-style dataset it only has the dataset's
    state. Objects are replaced, never changed, as the training loop and the machine may be at different batches.
    """

    dataset: Any = None
    """State of the dataset; None if it has none."""
    iterator: object = None
    """State of its iterator; None if it has none."""
    place: int = 0
    """Samples that had been read when these states were taken."""
    read: int | None = None
    """Samples that the batches so far have used up. In a stream that all workers read, those of all ranks, and None if
    that follows from the number of the batch.
    """
    batches: int = 0
    """Batches of a worker's own stream."""
    ended: bool = False
    """True if the stream has no sample left: there are no more batches of it in this epoch."""
    is_one: bool = False
    """True if the dataset is its own iterator, so the iterator's state outlives the epoch."""
    is_before: bool = False
    """True if the states are from the end of the epoch before: a generator, for example, has not read them yet."""
    is_left: bool = False
    """True if the states are from an epoch that was left, before this one: the worker begins and leaves it first."""

    @property
    def has_state(self) -> bool:
        """True if there is a state of the dataset or its iterator."""
        return self.dataset is not None or self.iterator is not None

    @property
    def skip(self) -> int:
        """Samples to read and discard after the states are restored."""
        return max(0, (self.read or 0) - self.place)

    def next_epoch(self, *, ended: bool = True) -> Position:
        """Return where the next epoch begins, if this one ends here, or is left here."""
        if self.is_one:
            return Position(self.iterator, is_before=True)
        if not ended and not self.is_before:
            return Position() if self.dataset is None else Position(self.dataset, is_left=True)
        return Position(self.dataset, self.iterator, is_before=True) if self.has_state else Position()

    def copied(self) -> Position:
        """Return a copy whose states do not change with the dataset's, or with those of another worker."""
        dataset, iterator = copy.deepcopy((self.dataset, self.iterator))
        return replace(self, dataset=dataset, iterator=iterator)

    def as_dict(self) -> dict[str, Any]:
        """Return the position as part of a loader's state, without what is not known or not so."""
        values = ((name, getattr(self, name)) for name in _DEFAULTS)
        # By identity: a user's state may be an array.
        return {name: value for name, value in values if value is not _DEFAULTS[name]}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Position:
        """Read what `as_dict` returned."""
        return cls(**{name: state[name] for name in _DEFAULTS if name in state})


_DEFAULTS = {each.name: each.default for each in fields(Position)}
