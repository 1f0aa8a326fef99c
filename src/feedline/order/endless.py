"""An order that starts again when it is exhausted, each time as another epoch."""

from __future__ import annotations

import numpy as np

from feedline.abc.sampler import BatchSampler, IndexArray, Sampler
from feedline.errors import BadOption
from feedline.system.ranks import Share
from feedline.types import Key


class EndlessSampler(Sampler):
    """The endless order of one sampler, or one rank's share of it.

    Args:
        sampler: the order of one epoch, of all ranks.
        share: this rank.
    """

    share: Share

    def __init__(self, sampler: Sampler, share: Share) -> None:
        self._sampler = sampler
        self._size = _checked(sampler.size())
        self.share = share

    def size(self) -> None:
        return None

    def whole(self) -> Sampler:
        return self if self.share.world_size == 1 else EndlessSampler(self._sampler, Share())

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        if self.share.world_size > 1:
            places = self.share.places(places, None)
        if self._size is None:
            return self._sampler.at(places, key)
        passes = places // self._size
        indices = np.empty_like(places)
        for number in np.unique(passes).tolist():
            chosen = passes == number
            own = places[chosen] - number * self._size
            indices[chosen] = self._sampler.at(own, Key(key.seed, key.epoch + number))
        return indices

    def describe(self) -> dict[str, object]:
        return self._sampler.describe()


class EndlessBatches(BatchSampler):
    """The endless batches of one batch sampler, or one rank's share of them.

    Args:
        sampler: the order of one epoch, of all ranks.
        share: this rank.
        first: the batch, counted over all ranks, to begin with.
    """

    share: Share

    def __init__(self, sampler: BatchSampler, share: Share, first: int = 0) -> None:
        self._sampler = sampler
        self._size = _checked(sampler.size())
        self._first = first
        self.share = share

    def size(self) -> None:
        return None

    def whole(self) -> BatchSampler:
        return self if self.share.world_size == 1 else EndlessBatches(self._sampler, Share())

    def resumed(self, first: int) -> EndlessBatches:
        return EndlessBatches(self._sampler, self.share, first)

    def batch(self, number: int, key: Key) -> IndexArray:
        place = self._first + number * self.share.world_size + self.share.rank
        if self._size is None:
            return self._sampler.batch(place, key)
        return self._sampler.batch(place % self._size, Key(key.seed, key.epoch + place // self._size))

    def describe(self) -> dict[str, object]:
        return self._sampler.describe()


def _checked(size: int | None) -> int | None:
    if size == 0:
        raise BadOption("virtual_epochs() has no batches to repeat: an epoch of this loader is empty.")
    return size
