"""Leave samples out of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from feedline.collate.arrays import Arrays
from feedline.collate.binding import Collate
from feedline.collate.default import default
from feedline.errors import BadOption, EmptyBatch
from feedline.types import CollateFunction


def drop_none(inner: CollateFunction = default, *, drop: Callable[[Any], bool] | None = None) -> DropNone:
    """Leave out samples that are None, and collate the others.

    A dataset that cannot make a sample returns None for it; the batch then has one sample less.

    Args:
        inner: collates the remaining samples.
        drop: a function that takes a sample and returns True to leave it out as well; not called for None. Worker
            processes that are not forked need a picklable function: one defined in a module, not a lambda.

    Raises:
        EmptyBatch: when a batch is made, if no samples remain.

    Example:
        >>> from feedline.collate import drop_none
        >>> drop_none()([1, None, 3])
        array([1, 3])
    """
    return DropNone(inner, drop)


class DropNone(Collate):
    """The collate function that `drop_none` returns."""

    def __init__(self, inner: CollateFunction, drop: Callable[[Any], bool] | None) -> None:
        super().__init__(inner)
        if drop is not None and not callable(drop):
            raise BadOption(f"drop={drop!r} is not a function that takes a sample and returns True to leave it out.")
        self.drop = drop

    def _collate(self, samples: Sequence[object], arrays: Arrays) -> object:
        kept = [sample for sample in samples if sample is not None]
        none_count = len(samples) - len(kept)
        if self.drop is not None:
            kept = [sample for sample in kept if not self.drop(sample)]
        if not kept:
            rejected = len(samples) - none_count
            raise EmptyBatch(
                f"Nothing is left of a batch of {len(samples)} samples: {none_count} are "
                f"None{f' and `drop` rejected {rejected}' if rejected else ''}. Find out why the dataset cannot make "
                "them (losing a whole batch is rarely chance), use a larger batch, or leave their indices out with a "
                "sampler. To continue with the next batch, catch feedline.errors.EmptyBatch around next()."
            )
        return self._inner(kept)

    def __repr__(self) -> str:
        return f"drop_none({self.inner!r}{f', drop={self.drop!r}' if self.drop is not None else ''})"
