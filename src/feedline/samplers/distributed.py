"""One rank's share of the indices of a sampler, or of the batches of a batch sampler; `distribute` takes any kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized

import numpy as np

from feedline import abc
from feedline.abc.sampler import IndexArray, Ordered, Sampler
from feedline.errors import BadOption
from feedline.randomness.keys import checked_seed
from feedline.samplers.batch import BatchSampler
from feedline.samplers.foreign import ForeignBatchSampler, ForeignSampler, yields_batches
from feedline.samplers.plain import RandomSampler
from feedline.samplers.sequential import SequentialSampler
from feedline.samplers.torch_bases import with_torch_base
from feedline.system.ranks import Share, Tail, own_share
from feedline.types import Key


class Shared(Ordered):
    """Base of samplers that yield one rank's share of an order.

    Ranks may start after the sampler was created: frameworks start them, and send the sampler there. So if the rank was
    not given, and there was only one, it is looked up again whenever the share is needed. torch's DistributedSampler
    raises an error in that case.

    It counts epochs by itself. An order without seed and generator gets the seed 0, because ranks that each drew a seed
    would not share one order; a generator must be seeded equally on all ranks.
    """

    def __init__(self, whole: Ordered, share: Share, *, is_found: bool = False) -> None:
        self._share = share
        self._is_found = is_found
        """True if the rank was not given, but looked up."""
        self.generator = whole.generator
        self._default_seed = None if whole.generator is not None else 0
        self.epoch = whole.epoch
        self.epoch_was_set = whole.epoch_was_set

    @property
    def seed(self) -> int | None:
        """The seed of the whole order."""
        own = self.whole().seed
        return self._default_seed if own is None else own

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self.whole().seed = seed

    def describe(self) -> dict[str, object]:
        """Return the description of the whole order: its state fits any number of ranks."""
        return self.whole().describe()

    def __repr__(self) -> str:
        share, name = self.share, type(self).__name__
        return f"{name}({self.whole()!r}, rank={share.rank}, world_size={share.world_size}, tail={share.tail!r})"

    @property
    def share(self) -> Share:  # type: ignore[override]  # it may be found later
        """The part that belongs to this rank."""
        if self._is_found and self._share.world_size == 1:
            self._share = own_share(None, None, self._share.tail)
        return self._share

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return self.share.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.share.world_size


@with_torch_base("DistributedSampler")
class Distributed(Shared, Sampler):
    """Yields every `world_size`-th index of a sampler, starting with the `rank`-th; `distribute` creates it.

    Example:
        >>> list(Distributed(SequentialSampler("abcde"), Share(rank=1, world_size=2)))
        [1, 3, 0]
    """

    def __init__(self, sampler: Sampler, share: Share, *, is_found: bool = False) -> None:
        super().__init__(sampler, share, is_found=is_found)
        self.sampler = sampler

    def size(self) -> int | None:
        total = self.sampler.size()
        return None if total is None else self.share.count(total)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return self.sampler.at(self.share.places(places, self.sampler.size()), key)

    def whole(self) -> Sampler:
        return self.sampler


class DistributedSampler(Distributed):
    """Yields this rank's share of a dataset's indices, with the arguments of torch's DistributedSampler.

    Args:
        dataset: Only its length is used.
        num_replicas: Number of ranks; if None, from torch's or JAX's process group or WORLD_SIZE, or 1 while there is
            neither.
        rank: Rank of this process; from the process group or the launcher if None, else 0.
        shuffle: Shuffle the whole order before it is divided, differently in each epoch.
        seed: Must be the same on all ranks.
        drop_last: Leave indices out, rather than repeat some, to give each rank the same number.
        tail: Instead of `drop_last`: "pad" repeats, "drop" leaves out, "exact" does neither, so that the last ranks may
            have one index less.

    `set_epoch` need not be called: each iteration is the next epoch. If it is called, it takes effect.

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
        # torch accepts an empty dataset here, and rejects it in RandomSampler.
        shuffled = shuffle and len(dataset) > 0
        super().__init__(
            RandomSampler(dataset, seed=seed) if shuffled else SequentialSampler(dataset),
            share,
            is_found=rank is None and num_replicas is None,
        )
        self.seed = checked_seed(seed)  # not None, which would let each rank draw its own
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


class DistributedBatches(Shared, abc.BatchSampler):
    """Yields every `world_size`-th batch of a batch sampler, starting with the `rank`-th; `distribute` creates it.

    An incomplete last round is filled up from the beginning ("pad"), left out ("drop"), or split into one piece for
    each rank ("exact"): all ranks take the same number of steps in any case.
    """

    def __init__(self, batches: abc.BatchSampler, share: Share, *, first: int = 0, is_found: bool = False) -> None:
        super().__init__(batches, share, is_found=is_found)
        self.batches = batches
        self.first = first
        """The number, in the whole order, of the batch that this starts with."""

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
        return pieces_of(last, self.share.world_size)[self.share.rank]

    def check(self, key: Key) -> None:
        """Raise BadOption if the tail is "exact" and the last round has fewer indices than ranks."""
        size = self.size()
        if size and self.share.tail == "exact":
            self.batch(size - 1, key)

    def whole(self) -> abc.BatchSampler:
        return self.batches

    def resumed(self, first: int) -> DistributedBatches:
        """Return the same share of what remains from batch `first` of the whole on; `first` may lie within a round."""
        rest = DistributedBatches(self.batches, self.share, first=first)
        rest.generator = self.generator
        rest.epoch, rest.epoch_was_set = self.epoch, self.epoch_was_set
        return rest


@with_torch_base("DistributedSampler")
class BatchIndices(Iterable[int]):
    """The indices of this rank's batches, one after the other: the `sampler` of a loader over such batches.

    To torch it is a DistributedSampler. Frameworks look for one there to see that ranks already have their shares.
    """

    def __init__(self, batches: abc.BatchSampler) -> None:
        self.batches = batches

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return (self.batches.share or Share()).rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return (self.batches.share or Share()).world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches:
            yield from batch

    def __len__(self) -> int:
        raise TypeError("Batches may differ in size: only their number is known, len(batch_sampler).")


def pieces_of(batches: list[IndexArray], count: int) -> list[IndexArray]:
    """Split batches into `count` pieces, each of them from one batch, by repeatedly halving the largest.

    Raises BadOption if there are fewer indices than pieces.
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


def distribute(
    sampler: abc.Sampler | abc.BatchSampler | Iterable[object],
    rank: int | None = None,
    world_size: int | None = None,
    *,
    tail: Tail = "pad",
) -> abc.Sampler | abc.BatchSampler:
    """Return this rank's share of a sampler or batch sampler: feedline's, torch's, a list, or your own.

    Batches that are cut from one of feedline's samplers are cut from the rank's share of its indices. Other batches are
    distributed as they are, except that `BalancedBatches` deals samples to ranks itself. Anything that is neither
    feedline's nor a list is iterated over on each rank, one epoch at a time, with `random`, `numpy.random` and torch's
    default generator seeded equally for that time, so that all ranks see the same order. A sampler with a generator of
    its own must be given one that is seeded equally on all ranks.

    Args:
        sampler: Needs a length unless it is feedline's.
        rank: Rank of this process; from the process group or the launcher if None, else 0.
        world_size: Number of ranks; from torch's or JAX's process group or WORLD_SIZE if None, else 1.
        tail: What happens to indices or batches that cannot be divided evenly. "pad" repeats some from the beginning,
            "drop" leaves them out. "exact" does neither: the last ranks may have one index less, and batches of the
            last round are split so that every rank has one.

    Raises:
        BadOption: the sampler is already one rank's share, or has no length, or rank and world size are invalid.

    Example:
        >>> [list(distribute([10, 20, 30], rank, 2)) for rank in range(2)]
        [[10, 30], [20, 10]]
    """
    share = own_share(rank, world_size, tail)
    is_found = rank is None and world_size is None
    if isinstance(sampler, abc.BatchSampler) and sampler.deals_to_ranks:
        return sampler.for_rank(share, is_found=is_found)
    _refuse_shared(sampler)
    if isinstance(sampler, abc.Sampler):
        return Distributed(sampler, share, is_found=is_found)
    if isinstance(sampler, abc.BatchSampler):
        return _distributed_batches(sampler, share, is_found=is_found)
    if not hasattr(sampler, "__len__"):
        raise BadOption(
            f"{sampler!r} has no length, so it cannot be divided among {share.world_size} ranks. Give it `__len__`, or "
            "turn it into a feedline.abc.Sampler."
        )
    if yields_batches(sampler):
        return DistributedBatches(ForeignBatchSampler(sampler), share, is_found=is_found)
    return Distributed(ForeignSampler(sampler), share, is_found=is_found)


def _distributed_batches(sampler: abc.BatchSampler, share: Share, *, is_found: bool) -> abc.BatchSampler:
    parts = sampler.cut_from()
    if parts is None:
        return DistributedBatches(sampler, share, is_found=is_found)
    indices, batch_size, drop_last = parts
    _refuse_shared(indices)
    batches = BatchSampler(Distributed(indices, share, is_found=is_found), batch_size, drop_last)
    assert isinstance(batches, abc.BatchSampler)
    return batches


def _refuse_shared(sampler: object) -> None:
    inner = sampler
    while inner is not None:
        if getattr(inner, "share", None) is not None or hasattr(inner, "num_replicas"):
            raise BadOption(
                f"{sampler!r} is already one rank's share, and a share of a share would leave indices out. "
                "Distribute the sampler it was made from."
            )
        inner = getattr(inner, "sampler", None)
