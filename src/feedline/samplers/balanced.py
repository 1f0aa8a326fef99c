"""Equal steps: batches of all ranks that cost the same in each step, so that no rank waits for the slowest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sized

import numpy as np

from feedline.abc.sampler import IndexArray, Sampler
from feedline.errors import BadOption
from feedline.samplers.costs import SampleCosts
from feedline.samplers.plain import RandomSampler
from feedline.samplers.seeded import SeededBatches
from feedline.samplers.sequential import SequentialSampler
from feedline.samplers.windows import Dealing, Windows
from feedline.system.options import checked_count
from feedline.system.ranks import Share, Tail, own_share
from feedline.types import Key, State, is_finite


class BalancedBatches(SeededBatches):
    """Yields one rank's batches so that the batches of all ranks cost the same in each step.

    In a step all ranks wait for the one whose batch takes longest. Within a window of a few steps of the shuffled
    order, samples are therefore dealt into the steps of all ranks so that the batches of a step cost the same. Every
    sample comes once per epoch, at most `window` steps away from where shuffling alone would put it.

    It knows the ranks itself, as `DistributedSampler` does: use it without `distribute`. A saved state fits any number
    of ranks, also inside a window, and other values of all arguments but `costs`, `shuffle` and `seed`.

    Args:
        costs: what each sample costs, in any unit: a list, array or tensor of numbers. With several kinds of cost, such
            as text and images, an array with a row per sample, or a dict of arrays: then each kind is balanced. Or a
            function of an index, or of an array of indices if it takes one; it must return the same on all ranks.
        batch_size: samples in a batch.
        max_cost: instead of `batch_size`: what a batch may cost at most; one number for each kind if there are several,
            in a dict if `costs` is one. A batch then has as many samples as fit, and the number of batches differs
            between epochs: `len` returns an estimate.
        window: how many steps are dealt at a time. More make steps more equal, and move samples further.
        micro_batches: batches of a rank in a step, with gradient accumulation; these cost the same, too.
        rank: rank of this process; from the process group or the launcher if None, else 0.
        world_size: number of ranks; likewise, else 1.
        tail: what happens at the end of an epoch if samples do not divide evenly, as in `distribute`: "pad" repeats
            some, "drop" leaves them out, "exact" makes batches of different size.
        drop_last: leave out a last batch that is not full.
        shuffle: False for windows in the order of the dataset, dealt in the same way in each epoch.
        seed: fixes the orders of all epochs; must be the same on all ranks.
        generator: torch or NumPy generator to draw the seed of each epoch from instead, seeded equally on all ranks.
        num_samples: how many samples there are, if `costs` is a function.

    Raises:
        BadOption: a cost is negative, NaN or infinite, or more than `max_cost`.

    Example:
        >>> import numpy as np
        >>> lengths = np.random.default_rng(0).lognormal(5, 1, 10_000).clip(max=2000)
        >>> ranks = [BalancedBatches(lengths, 8, rank=rank, world_size=4, seed=1) for rank in range(4)]
        >>> first_step = [lengths[next(iter(rank))].sum() for rank in ranks]
        >>> bool(max(first_step) < 1.02 * min(first_step))
        True
    """

    deals_to_ranks = True

    # object: an array or tensor has no common type with a list; a torch or NumPy generator.
    def __init__(
        self,
        costs: object,
        batch_size: int | None = None,
        *,
        max_cost: object = None,
        window: int = 16,
        micro_batches: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail = "pad",
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        generator: object = None,
        num_samples: int | None = None,
    ) -> None:
        super().__init__(drop_last=drop_last, shuffle=shuffle, seed=seed, generator=generator)
        if (batch_size is None) == (max_cost is None):
            raise BadOption(f"Give either batch_size or max_cost, not batch_size={batch_size} and max_cost={max_cost}.")
        if drop_last and max_cost is not None:
            raise BadOption("drop_last=True leaves out a batch that is not full, but max_cost gives batches no size.")
        self.batch_size = None if batch_size is None else checked_count("batch_size", batch_size)
        self.window = checked_count("window", window)
        self.micro_batches = checked_count("micro_batches", micro_batches)
        self._share = own_share(rank, world_size, tail)
        self._is_found = rank is None and world_size is None
        self._costs = SampleCosts(costs, num_samples)
        self._max_cost = None if max_cost is None else _limits(max_cost, self._costs)
        samples = range(self._costs.count)
        self._order: Sampler = RandomSampler(samples) if shuffle else SequentialSampler(samples)
        self._epoch: tuple[Key, int, Windows] | None = None

    @property
    def share(self) -> Share:  # type: ignore[override]  # ranks may start after the sampler was created
        """The rank whose batches these are. One that was not given is looked up until there are several."""
        if self._is_found and self._share.world_size == 1:
            self._share = own_share(None, None, self._share.tail)
        return self._share

    @property
    def rank_is_given(self) -> bool:
        """True if the rank, or the number of ranks, was given rather than looked up."""
        return not self._is_found

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self.share.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.share.world_size

    def check_dataset(self, dataset: Sized) -> None:
        """Raise BadOption if there is not one cost for each sample: samples without one would never come."""
        if len(dataset) != self._costs.count:
            raise BadOption(
                f"BalancedBatches has the costs of {self._costs.count:,} samples, and the dataset has "
                f"{len(dataset):,}. Give a cost for each sample, or load only some of them: "
                "torch.utils.data.Subset(dataset, indices)."
            )

    def for_rank(self, share: Share, *, is_found: bool) -> BalancedBatches:
        if self.rank_is_given:
            raise BadOption(f"{self!r} already yields the batches of one rank. Drop distribute(), or its rank.")
        other = copy.copy(self)
        other._share, other._is_found, other._epoch = share, is_found, None
        return other

    def draw_seed(self) -> int:
        """Return the seed of the next epoch; 0 if there are several ranks, which must agree, and no seed was given."""
        if self.seed is None and self.generator is None and self.share.world_size > 1:
            return 0
        return super().draw_seed()

    def dealing(self, share: Share | None = None) -> Dealing:
        """Return into what the samples are dealt."""
        share = share or self.share
        return Dealing(
            share.world_size,
            self.batch_size,
            self._max_cost,
            self.window,
            self.micro_batches,
            share.tail,
            self.drop_last,
        )

    def windows(
        self, key: Key, *, share: Share | None = None, endless: bool = False, state: State | None = None
    ) -> Windows:
        """Return the windows of an epoch, from a saved position on."""
        dealing = self.dealing(share)
        return Windows(self._order, self._costs, dealing, key, shuffle=self.shuffle, endless=endless, state=state)

    def size(self) -> int:
        """Return how many batches of this rank an epoch has; an estimate with `max_cost`."""
        return self.windows(Key(0, 0)).count()

    @property
    def samples(self) -> int:
        """Samples in an epoch of all ranks."""
        return self._costs.count

    def check(self, key: Key) -> None:
        """Raise BadOption if there are fewer samples than ranks and the tail is "drop", or "exact" is not possible."""
        share = self.share
        if share.tail == "drop" and self.samples < share.world_size:
            raise BadOption(
                f"{self.samples} samples are fewer than {share.world_size} ranks, so tail='drop' leaves out all of "
                "them. Use tail='pad', or fewer ranks."
            )

    def batch(self, number: int, key: Key) -> IndexArray:
        epoch, ranks = self._epoch, self.share.world_size  # read once: other threads may replace it
        if epoch is None or epoch[:2] != (key, ranks):
            epoch = self._epoch = key, ranks, self.windows(key)
        batch = epoch[2].batch(number, self.share.rank) if number >= 0 else None
        if batch is None:
            raise IndexError(f"batch {number} is not among the batches of an epoch.")
        return batch

    def __iter__(self) -> Iterator[list[int]]:
        key, share = self.begin(), self.share
        self.check(key)
        windows, number = self.windows(key), 0
        while (batch := windows.batch(number, share.rank)) is not None:
            yield batch.tolist()
            number += 1

    def describe(self) -> State:
        # Without the number of batches: a state fits any number of ranks and size of batches.
        return {"kind": type(self).__name__, **self._costs.describe(), "shuffle": self.shuffle}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epoch": None}

    def __repr__(self) -> str:
        size = f"max_cost={self._max_cost}" if self.batch_size is None else f"batch_size={self.batch_size}"
        micro = "" if self.micro_batches == 1 else f", micro_batches={self.micro_batches}"
        return (
            f"BalancedBatches({self.samples} samples, {size}, window={self.window}{micro}, rank={self.rank}, "
            f"world_size={self.num_replicas}, tail={self.share.tail!r}{self._options()})"
        )


# object: a number, a sequence of numbers, or a dict of them.
def _limits(max_cost: object, costs: SampleCosts) -> tuple[float, ...]:
    """Return the limit of each kind of cost."""
    values: list[object]
    if isinstance(max_cost, Mapping):
        if {*map(str, max_cost)} != {*(costs.names or [])}:
            raise BadOption(f"max_cost has the kinds {[*max_cost]}, but costs has {costs.names}.")
        by_name = {str(name): value for name, value in max_cost.items()}
        values = [by_name[name] for name in costs.names or []]
    else:
        values = list(max_cost) if isinstance(max_cost, (list, tuple, np.ndarray)) else [max_cost]
    if len(values) != costs.kinds:
        raise BadOption(f"max_cost={max_cost!r} has {len(values)} numbers, but there are {costs.kinds} kinds of cost.")
    limits = []
    for value in values:
        if not is_finite(value) or value <= 0:
            raise BadOption(f"max_cost={max_cost!r}: {value!r} is not a positive number.")
        limits.append(int(value) if isinstance(value, (int, np.integer)) else float(value))
    largest = costs.largest()
    if largest is not None:
        for limit, cost, sample in zip(limits, *largest, strict=True):
            if cost > limit:
                raise BadOption(
                    f"Sample {sample} costs {cost:g}, more than max_cost={limit}, so it fits into no batch. Raise "
                    "max_cost, or leave such samples out."
                )
    return tuple(limits)
