"""The share of one rank in the batches of a batch sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from feedline.abc.sampler import BatchSampler, IndexArray
from feedline.errors import BadOption
from feedline.samplers.shared import Shared
from feedline.types import Key, Share


class DistributedBatches(Shared, BatchSampler):  # type: ignore[misc]  # its share may be found later
    """Yields every `world_size`-th batch of a batch sampler, beginning with the `rank`-th; `distribute` makes it.

    Batches that do not go round are repeated from the beginning ("pad"), left out ("drop"), or split into one
    piece for each rank ("exact"): all ranks take the same number of steps in any case.

    It counts epochs by itself. A batch sampler without seed and generator gets the seed 0, because ranks that drew
    a seed each would not share one order; a generator must be seeded alike on all ranks.
    """

    def __init__(self, batches: BatchSampler, share: Share, *, first: int = 0, is_found: bool = False) -> None:
        super().__init__(share, is_found=is_found)
        self.batches = batches
        self.first = first
        """The batch of the whole with which this begins."""
        self.generator = batches.generator
        self.seed = 0 if batches.seed is None and batches.generator is None else batches.seed
        self.epoch = batches.epoch
        self.epoch_was_set = batches.epoch_was_set

    def size(self) -> int | None:
        total = self.batches.size()
        if total is None:
            return None
        left = max(0, total - self.first)
        if self.share.tail == "drop":
            return left // self.share.world_size
        return -(-left // self.share.world_size)

    def batch(self, number: int, key: Key) -> IndexArray:
        total = self.batches.size()
        begin = self.first + number * self.share.world_size
        if total is None or begin + self.share.world_size <= total:
            return self.batches.batch(begin + self.share.rank, key)
        if self.share.tail != "exact":
            return self.batches.batch((begin + self.share.rank) % total, key)
        last = [self.batches.batch(other, key) for other in range(begin, total)]
        return split(last, self.share.world_size)[self.share.rank]

    def check(self, key: Key) -> None:
        """Refuse an epoch whose last round cannot be split.

        Raises:
            BadOption: with the tail "exact", there are fewer indices in it than ranks.
        """
        size = self.size()
        if size and self.share.tail == "exact":
            self.batch(size - 1, key)

    def whole(self) -> BatchSampler:
        return self.batches

    def resumed(self, first: int) -> DistributedBatches:
        """Return the same share of what remains from batch `first` of the whole on; `first` may lie within a round."""
        rest = DistributedBatches(self.batches, self.share, first=first)
        rest.seed, rest.generator = self.seed, self.generator
        rest.epoch, rest.epoch_was_set = self.epoch, self.epoch_was_set
        return rest

    def describe(self) -> dict[str, Any]:
        """Return what describes the whole: its state fits any number of ranks."""
        return self.batches.describe()

    def __repr__(self) -> str:
        share = self.share
        return (
            f"DistributedBatches({self.batches!r}, rank={share.rank}, world_size={share.world_size}, "
            f"tail={share.tail!r})"
        )


class BatchIndices(Iterable[int]):
    """The indices of this rank's batches, one after the other: what a loader over such batches has as its `sampler`.

    To torch it is a DistributedSampler, which frameworks look for there to see that ranks have their shares already.
    """

    def __init__(self, batches: DistributedBatches) -> None:
        self.batches = batches

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return self.batches.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.batches.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches:
            yield from batch

    def __len__(self) -> int:
        raise TypeError(
            "Batches may differ in size from epoch to epoch: only their number is known, len(batch_sampler)."
        )


def split(batches: list[IndexArray], count: int) -> list[IndexArray]:
    """Split batches into `count` pieces, each of them from one batch, by halving the largest again and again.

    Raises:
        BadOption: there are fewer indices than pieces.

    Example:
        >>> [piece.tolist() for piece in split([np.arange(4), np.arange(4, 7)], 4)]
        [[0, 1], [2, 3], [4, 5], [6]]
    """
    pieces = list(batches)
    indices = sum(map(len, pieces))
    if indices < count:
        raise BadOption(
            f'tail="exact" cannot give each of {count} ranks a piece of the last {len(batches)} batches, which hold '
            f'{indices} indices together. Use tail="pad" or "drop", larger batches, or fewer ranks.'
        )
    while len(pieces) < count:
        where = int(np.argmax([len(piece) for piece in pieces]))
        piece = pieces[where]
        middle = (len(piece) + 1) // 2
        pieces[where : where + 1] = [piece[:middle], piece[middle:]]
    return pieces
