"""The share of one rank in the indices of a sampler."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any

from feedline.abc.sampler import IndexArray, Sampler
from feedline.errors import BadOption
from feedline.ranks import own_share
from feedline.samplers.random import RandomSampler
from feedline.samplers.sequential import SequentialSampler
from feedline.samplers.shared import Shared
from feedline.types import Key, Share, Tail


class Distributed(Shared, Sampler):  # type: ignore[misc]  # its share may be found later
    """Yields every `world_size`-th index of a sampler, beginning with the `rank`-th; `distribute` makes it.

    It counts epochs by itself. A sampler without seed and generator gets the seed 0, because ranks that drew
    a seed each would not share one order; a generator must be seeded alike on all ranks.

    Example:
        >>> list(Distributed(SequentialSampler("abcde"), Share(rank=1, world_size=2)))
        [1, 3, 0]
    """

    def __init__(self, sampler: Sampler, share: Share, *, is_found: bool = False) -> None:
        super().__init__(share, is_found=is_found)
        self.sampler = sampler
        self.generator = sampler.generator
        self.seed = 0 if sampler.seed is None and sampler.generator is None else sampler.seed
        self.epoch = sampler.epoch
        self.epoch_was_set = sampler.epoch_was_set

    def size(self) -> int | None:
        total = self.sampler.size()
        return None if total is None else self.share.count(total)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return self.sampler.at(self.share.places(places, self.sampler.size()), key)

    def whole(self) -> Sampler:
        return self.sampler

    def describe(self) -> dict[str, Any]:
        """Return what describes the whole: its state fits any number of ranks."""
        return self.sampler.describe()

    def __repr__(self) -> str:
        share = self.share
        return f"Distributed({self.sampler!r}, rank={share.rank}, world_size={share.world_size}, tail={share.tail!r})"


class DistributedSampler(Distributed):
    """Yields this rank's share of a dataset's indices, the arguments being those of torch's DistributedSampler.

    Args:
        dataset: Only its length matters.
        num_replicas: Number of ranks; from torch's or JAX's process group or WORLD_SIZE if None, else 1 for as long as
            there is neither.
        rank: This one; from torch's or JAX's process group or RANK if None, else 0.
        shuffle: Put the whole in random order first, another one in each epoch.
        seed: Must be the same on all ranks.
        drop_last: Leave indices out, rather than repeat some, to give each rank the same number.
        tail: Instead of `drop_last`: "pad" repeats, "drop" leaves out, "exact" does neither, so that the
            last ranks may have an index less.

    `set_epoch` need not be called: each iteration is the next epoch. Where it is called, it is obeyed.

    Example:
        >>> [list(DistributedSampler("abcde", 2, rank, shuffle=False, tail="exact")) for rank in range(2)]
        [[0, 2, 4], [1, 3]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        tail: Tail | None = None,
    ) -> None:
        if drop_last and tail not in (None, "drop"):
            raise BadOption(f"drop_last=True and tail={tail!r} contradict each other. Drop one of them.")
        share = own_share(rank, num_replicas, tail or ("drop" if drop_last else "pad"))
        # Torch takes an empty dataset here, and refuses it in RandomSampler.
        shuffled = shuffle and len(dataset) > 0
        super().__init__(
            RandomSampler(dataset, seed=seed) if shuffled else SequentialSampler(dataset),
            share,
            is_found=rank is None and num_replicas is None,
        )
        self.seed = operator.index(seed)  # not None, which would let each rank draw its own
        self.dataset = dataset
        self.shuffle = shuffle
        self.drop_last = share.tail == "drop"

    @property
    def num_samples(self) -> int:
        """Indices of this rank in an epoch."""
        return self.share.count(len(self.dataset))

    @property
    def total_size(self) -> int:
        """Indices of all ranks in an epoch."""
        return len(self.dataset) if self.share.tail == "exact" else self.num_samples * self.num_replicas

    def __repr__(self) -> str:
        return (
            f"DistributedSampler({len(self.dataset)} samples, num_replicas={self.num_replicas}, rank={self.rank}, "
            f"shuffle={self.shuffle}, seed={self.seed}, tail={self.share.tail!r})"
        )
