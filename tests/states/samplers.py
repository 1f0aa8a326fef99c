"""Map-style datasets: every sampler, and what a loader's options add to a state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from feedline import Loader, samplers
from feedline.abc import BatchSampler
from tests.states.data import Drawing, Failing, LateFirst, Reversed, Stateful, StatefulReversed
from tests.states.recipe import Recipe

SIZE = 37
LABELS = [number % 3 for number in range(SIZE)]
LENGTHS = [1 + 5 * number % 23 for number in range(SIZE)]
WEIGHTS = [1 + number % 4 for number in range(SIZE)]

# Any: a sampler or a batch sampler.
Make = Callable[[], Any]

SAMPLERS: dict[str, Make] = {
    "BalancedBatches": lambda: samplers.BalancedBatches(LENGTHS, 4, window=2, seed=3),
    "BalancedSampler": lambda: samplers.BalancedSampler(LABELS, 30, seed=3),
    "BatchSampler": lambda: samplers.BatchSampler(samplers.RandomSampler(range(SIZE), seed=3), 5, False),
    "BlockSampler": lambda: samplers.BlockSampler([10, 7, 12, 8], window=2, seed=3),
    "DistributedSampler": lambda: samplers.DistributedSampler(range(SIZE), 3, 1, seed=3),
    "InfiniteSampler": lambda: samplers.InfiniteSampler(range(SIZE), seed=3),
    "LengthBucketBatchSampler": lambda: samplers.LengthBucketBatchSampler(LENGTHS, 5, seed=3),
    "RandomSampler": lambda: samplers.RandomSampler(range(SIZE), seed=3),
    "SequentialSampler": lambda: samplers.SequentialSampler(range(SIZE)),
    "StratifiedBatchSampler": lambda: samplers.StratifiedBatchSampler(LABELS, 6, seed=3),
    "SubsetRandomSampler": lambda: samplers.SubsetRandomSampler(list(range(3, 30)), seed=3),
    "TokenBudgetBatchSampler": lambda: samplers.TokenBudgetBatchSampler(LENGTHS, 60, seed=3),
    "WeightedRandomSampler": lambda: samplers.WeightedRandomSampler(WEIGHTS, 30, seed=3),
    "distribute": lambda: samplers.distribute(samplers.WeightedRandomSampler(WEIGHTS, 30, seed=3), 1, 2),
    # Other options that change the order.
    "BalancedBatches, by cost": lambda: samplers.BalancedBatches(LENGTHS, max_cost=60, window=2, seed=3),
    "DistributedSampler, exact": lambda: samplers.DistributedSampler(range(SIZE), 3, 2, seed=3, tail="exact"),
    "RandomSampler, with replacement": lambda: samplers.RandomSampler(range(SIZE), True, 30, seed=3),
    "SubsetRandomSampler, of all": lambda: samplers.SubsetRandomSampler(range(SIZE), seed=3),
    "WeightedRandomSampler, without replacement": lambda: samplers.WeightedRandomSampler(WEIGHTS, 30, False, seed=3),
    "distribute, batches": lambda: samplers.distribute(samplers.LengthBucketBatchSampler(LENGTHS, 4, seed=3), 0, 2),
    "foreign": Reversed,
    "foreign with a state": StatefulReversed,
}
"""Every name of `feedline.samplers` has its own recipe, which a test checks."""


def _loader(make: Make, workers: int = 0, batch_size: int = 5) -> Loader:
    sampler = make()
    options: dict[str, Any] = {"seed": 3, "workers": workers, "engine": "thread" if workers else "inline"}
    if isinstance(sampler, BatchSampler):
        return Loader(Drawing(SIZE), batch_sampler=sampler, **options)
    return Loader(Drawing(SIZE), batch_size, sampler=sampler, **options)


def _shared() -> Loader:
    """Return the loader of this process's rank."""
    sampler = samplers.DistributedSampler(range(SIZE), seed=3, tail="exact")
    return Loader(Drawing(SIZE), 3, sampler=sampler, seed=3)


RECIPES: dict[str, Recipe] = {
    **{name: Recipe(partial(_loader, make)) for name, make in SAMPLERS.items()},
    "end of an epoch": Recipe(partial(_loader, SAMPLERS["RandomSampler"]), after=None),
    "before the first batch": Recipe(partial(_loader, SAMPLERS["RandomSampler"]), after=0),
    "after the last batch": Recipe(partial(_loader, SAMPLERS["RandomSampler"]), after=8),
    "end of an epoch, foreign": Recipe(partial(_loader, StatefulReversed), after=None),
    "shuffle": Recipe(lambda: Loader(Drawing(SIZE), 5, shuffle=True, seed=3)),
    "two workers, then three": Recipe(
        partial(_loader, SAMPLERS["RandomSampler"], 2), then=partial(_loader, SAMPLERS["RandomSampler"], 3)
    ),
    "two processes, then none": Recipe(
        lambda: Loader(Drawing(SIZE), 5, shuffle=True, seed=3, workers=2, engine="process"),
        then=lambda: Loader(Drawing(SIZE), 5, shuffle=True, seed=3),
    ),
    "another batch size": Recipe(
        partial(_loader, SAMPLERS["RandomSampler"]), then=partial(_loader, SAMPLERS["RandomSampler"], 0, 4)
    ),
    "three ranks, then two": Recipe(_shared, ranks=3, then_ranks=2),
    "two ranks, then three": Recipe(_shared, ranks=2, then_ranks=3),
    "virtual epochs": Recipe(lambda: Loader(Drawing(SIZE), 5, shuffle=True, seed=3), after=3, virtual=6),
    "virtual epochs, later": Recipe(lambda: Loader(Drawing(8), 3, shuffle=True, seed=3), after=5, virtual=6),
    "virtual epochs, two ranks then three": Recipe(
        lambda: Loader(Drawing(SIZE), 2, shuffle=True, seed=3), after=3, virtual=6, ranks=2, then_ranks=3
    ),
    "no batches": Recipe(lambda: Loader(Drawing(SIZE), None, shuffle=True, seed=3), after=4),
    "drop_last": Recipe(lambda: Loader(Drawing(SIZE), 5, shuffle=True, seed=3, drop_last=True), after=6),
    "skipped samples": Recipe(lambda: Loader(Failing(SIZE), 5, seed=3, on_error="skip"), after=3),
    "out of order": Recipe(
        lambda: Loader(LateFirst(), 5, seed=3, workers=2, engine="thread", in_order=False, prefetch=1),
        after=1,
        then=lambda: Loader(Drawing(SIZE), 5, seed=3, in_order=False),
    ),
    "stateful dataset": Recipe(lambda: Loader(Stateful(), 3)),
    "stateful dataset, two workers": Recipe(lambda: Loader(Stateful(), 3, workers=2, engine="process"), after=3),
}
