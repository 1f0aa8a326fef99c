"""Which batches a loader delivers, and which states match."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from feedline import samplers
from feedline.errors import BadState
from feedline.order.order import (
    BatchOrder,
    Entry,
    Order,
    SampleOrder,
    SpanOrder,
)
from feedline.system.ranks import Share
from feedline.types import IndexBlock, Key, StreamSharding

KEY = Key(3, 0)


def listed(order: Order, consumed: int = 0, count: int | None = None) -> list[Any]:
    """Return what an order's plan yields, after `consumed`."""
    plan = order.plan(Entry(KEY, 7, {"consumed": consumed} if consumed else {}))
    items = [next(plan) for _ in range(count)] if count is not None else list(plan)
    return [item.array.tolist() if isinstance(item, IndexBlock) else item for item in items]


def samples(count: int = 10, size: int | None = 2, **options: Any) -> SampleOrder:
    return SampleOrder(samplers.SequentialSampler(range(count)), size, drop_last=False, **options)


def buckets(seed: int | None = 3, count: int = 8) -> samplers.LengthBucketBatchSampler:
    return samplers.LengthBucketBatchSampler(list(range(count)), 2, seed=seed)


def shared(*, drop_last: bool = False) -> SampleOrder:
    """Return the order of one of three ranks."""
    share: Any = samplers.distribute(samplers.SequentialSampler(range(10)), 1, 3)
    return SampleOrder(share, 2, drop_last=drop_last)


def shared_batches() -> BatchOrder:
    share: Any = samplers.distribute(buckets(), 0, 2)
    return BatchOrder(share)


# -- seeds ---


def random_order(seed: int | None = None, generator: Any = None) -> SampleOrder:
    return SampleOrder(samplers.RandomSampler(range(9), seed=seed, generator=generator), 2, drop_last=False)


def test_the_generator_of_a_sampler_overrides_the_loaders_seed() -> None:
    expected = torch.Generator().manual_seed(4)
    drawn = random_order(generator=torch.Generator().manual_seed(4)).seed_for(8)
    assert drawn == torch.empty((), dtype=torch.int64).random_(generator=expected).item()


# -- states ---


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (samples(10, 2), samples(10, 3)),
        (samples(), shared()),
        (BatchOrder(buckets()), shared_batches()),
        (SpanOrder(StreamSharding(2, Share())), SpanOrder(StreamSharding(3, Share()))),
        (SpanOrder(StreamSharding(2, Share())), SpanOrder(StreamSharding(2, Share(0, 2)))),
    ],
)
def test_a_state_with_early_batches_needs_the_same_batches(mine: Order, theirs: Order) -> None:
    """Batch 3 of two samples each is not batch 3 of three samples each."""
    mine.check({**theirs.expected()})
    with pytest.raises(BadState, match="stride"):
        mine.check(json.loads(json.dumps({**theirs.expected(), "stride": theirs.stride()})))
    mine.check(json.loads(json.dumps({**mine.expected(), "stride": mine.stride()})))


# -- endless orders ---


def test_an_orders_own_share_takes_precedence() -> None:
    share: Any = samplers.distribute(samplers.SequentialSampler(range(4)), 1, 2)
    order = SampleOrder(share, 2, drop_last=False).without_end(Share(0, 1))
    assert listed(order, count=2) == [[1, 3], [1, 3]]
    assert listed(samples(4).without_end(Share(1, 2)), count=2) == [[1, 3], [1, 3]]
