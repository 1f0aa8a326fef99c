"""Which batches a loader delivers, and which states match."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from feedline import DataLoader, Loader, samplers
from feedline.abc.sampler import BatchSampler, Sampler
from feedline.errors import BadOption, BadState
from feedline.order.order import (
    BatchOrder,
    Entry,
    Order,
    SampleOrder,
    SpanOrder,
    StreamOrder,
    order_of,
)
from feedline.types import IndexBlock, Key, Share, Span, StreamSharding, Tail

pytestmark = pytest.mark.sample(8)

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


ORDERS: dict[str, Order] = {
    "samples": samples(),
    "batches": BatchOrder(buckets()),
    "spans": SpanOrder(StreamSharding(2, Share())),
    "streams": StreamOrder(2),
}


# -- which order ---


def test_a_sampler_is_cut_into_batches() -> None:
    order = order_of(samplers.SequentialSampler(range(5)), 2, drop_last=True)
    assert isinstance(order, SampleOrder)
    assert listed(order) == [[0, 1], [2, 3]]


def test_a_batch_sampler_that_cuts_a_sampler_is_resumed_by_samples() -> None:
    batches = samplers.BatchSampler(samplers.SequentialSampler(range(5)), 2, drop_last=False)
    order = order_of(batches, None, drop_last=False)
    assert isinstance(order, SampleOrder)
    assert listed(order, consumed=1) == [[1, 2], [3, 4]]


def test_any_other_batch_sampler_is_resumed_by_batches() -> None:
    order = order_of(buckets(), None, drop_last=False)
    assert isinstance(order, BatchOrder)
    everything = listed(order)
    assert len(everything) == 4
    assert listed(order, consumed=3) == everything[3:]


@pytest.mark.parametrize("sampler", [[1, 2], range(3), torch.utils.data.SequentialSampler(range(3)), None])
def test_foreign_samplers_have_no_order_here(sampler: Any) -> None:
    assert order_of(sampler, 2, drop_last=False) is None


def test_plans_of_streams_and_spans() -> None:
    assert listed(ORDERS["streams"], count=2) == [2, 2]
    assert listed(ORDERS["spans"], consumed=6, count=2) == [Span(0, 6), Span(1, 6)]


# -- seeds ---


def random_order(seed: int | None = None, generator: Any = None) -> SampleOrder:
    return SampleOrder(samplers.RandomSampler(range(9), seed=seed, generator=generator), 2, drop_last=False)


def test_the_samplers_own_seed_comes_first() -> None:
    assert random_order(seed=5).seed_for(8) == 5
    assert random_order(seed=0).seed_for(8) == 0


def test_without_a_samplers_seed_the_loaders_is_used_or_one_is_drawn() -> None:
    assert random_order().seed_for(8) == 8
    torch.manual_seed(1)
    drawn = random_order().seed_for(None)
    torch.manual_seed(1)
    assert random_order().seed_for(None) == drawn
    assert random_order().seed_for(None) != drawn


def test_the_generator_of_a_sampler_overrides_the_loaders_seed() -> None:
    expected = torch.Generator().manual_seed(4)
    drawn = random_order(generator=torch.Generator().manual_seed(4)).seed_for(8)
    assert drawn == torch.empty((), dtype=torch.int64).random_(generator=expected).item()


def test_ranks_without_a_seed_agree_on_one() -> None:
    whole = samplers.RandomSampler(range(9))
    shares: list[Any] = [samplers.distribute(whole, rank, 2) for rank in range(2)]
    assert {SampleOrder(share, 2, drop_last=False).seed_for(None) for share in shares} == {0}
    assert {SampleOrder(share, 2, drop_last=False).seed_for(8) for share in shares} == {8}


def test_streams_have_no_seed_and_no_sampler() -> None:
    for name in ("spans", "streams"):
        assert ORDERS[name].sampler is None
        assert ORDERS[name].seed_for(None) is None
        assert ORDERS[name].seed_for(8) == 8


def test_a_batch_sampler_has_a_seed() -> None:
    order = BatchOrder(buckets(seed=6))
    assert order.seed_for(8) == 6
    assert BatchOrder(buckets(seed=None)).seed_for(8) == 8
    assert order.sampler is not None


# -- lengths ---


@pytest.mark.parametrize(("tail", "length"), [("pad", 3), ("drop", 3), ("exact", 3)])
def test_a_share_knows_its_number_of_batches(tail: Tail, length: int) -> None:
    share: Any = samplers.distribute(samplers.SequentialSampler(range(10)), 1, 2, tail=tail)
    order = SampleOrder(share, 2, drop_last=False)
    assert order.length() == length == len(listed(order))


def test_unshared_orders_leave_the_length_to_torch() -> None:
    assert samples().length() is None
    assert ORDERS["streams"].length() is None


# -- states ---


@pytest.mark.parametrize("name", ORDERS)
def test_a_state_of_the_same_order_is_accepted(name: str) -> None:
    order = ORDERS[name]
    order.check({})
    order.check(json.loads(json.dumps({**order.expected(), "consumed": 4})))


@pytest.mark.parametrize("mine", ORDERS)
@pytest.mark.parametrize("theirs", ORDERS)
def test_a_state_of_another_kind_of_order_is_rejected(mine: str, theirs: str) -> None:
    if mine == theirs:
        return
    with pytest.raises(BadState, match="another order"):
        ORDERS[mine].check(ORDERS[theirs].expected())


def test_the_error_names_the_likely_cause() -> None:
    shuffled = SampleOrder(samplers.RandomSampler(range(10), seed=1), 2, drop_last=False)
    own = {"unit": "own batches", "consumed": 1, "batch_size": 2, "length": 5}
    with pytest.raises(BadState, match="That loader shuffled or had a sampler or batch sampler; this one does not"):
        samples().check(own)
    with pytest.raises(BadState, match=r"Its sampler was not one of feedline's\. Was seed= missing there"):
        shuffled.check(own)
    with pytest.raises(BadState, match="That loader did not shuffle and had no sampler"):
        ORDERS["batches"].check({**samples().expected(), "consumed": 4})
    with pytest.raises(BadState, match="Is seed= missing here"):
        ORDERS["streams"].check({**shuffled.expected(), "consumed": 4})


def test_the_error_names_only_what_differs() -> None:
    with pytest.raises(BadState) as refused:
        samples(10).check(samples(11).expected())
    assert "size=11" in str(refused.value)
    assert "size=10" in str(refused.value)
    assert "unit" not in str(refused.value), "equal values are not named"


@pytest.mark.parametrize(
    "other",
    [
        samples(10, 5),
        samples(10, None),
        shared(drop_last=True),
    ],
)
def test_batch_size_and_ranks_may_differ(other: SampleOrder) -> None:
    samples().check(other.expected())
    other.check(samples().expected())


def test_streams_need_the_same_batch_size() -> None:
    with pytest.raises(BadState, match="batch_size: 3, and here batch_size: 2"):
        StreamOrder(2).check(StreamOrder(3).expected())
    SpanOrder(StreamSharding(2, Share())).check(SpanOrder(StreamSharding(3, Share(1, 4))).expected())


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


def test_orders_of_samplers_can_be_endless() -> None:
    order = samples(5).without_end(Share())
    assert order.endless
    assert listed(order, count=4) == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert listed(order, consumed=13, count=1) == [[3, 4]]
    batches = BatchOrder(buckets()).without_end(Share(1, 2))
    assert batches.endless
    whole = listed(BatchOrder(buckets()))
    assert listed(batches, count=2) == whole[1::2]


def test_an_orders_own_share_takes_precedence() -> None:
    share: Any = samplers.distribute(samplers.SequentialSampler(range(4)), 1, 2)
    order = SampleOrder(share, 2, drop_last=False).without_end(Share(0, 1))
    assert listed(order, count=2) == [[1, 3], [1, 3]]
    assert listed(samples(4).without_end(Share(1, 2)), count=2) == [[1, 3], [1, 3]]


def test_streams_cannot_be_endless() -> None:
    assert ORDERS["spans"].without_end(Share()) is None
    assert ORDERS["streams"].without_end(Share()) is None


def test_a_state_of_an_endless_order_is_marked_and_accepted_by_its_loader() -> None:
    endless = samples().without_end(Share())
    assert endless.expected()["endless"]
    samples().check(endless.expected())  # a plain iteration is rejected later; loading comes first
    assert endless.seed_for(5) == samples().seed_for(5)


def test_custom_samplers_make_orders_like_others() -> None:
    class Backwards(Sampler):
        def size(self) -> int:
            return 4

        def at(self, places: Any, key: Key) -> Any:
            return 3 - places

    class Pairs(BatchSampler):
        def size(self) -> int:
            return 2

        def batch(self, number: int, key: Key) -> Any:
            return np.array([number, number + 10])

    mine = order_of(Backwards(), 3, drop_last=False)
    pairs = order_of(Pairs(), None, drop_last=False)
    assert mine is not None
    assert pairs is not None
    assert listed(mine, consumed=1) == [[2, 1, 0]]
    assert listed(pairs) == [[0, 10], [1, 11]]
    assert mine.expected()["sampler"] == {"kind": "Backwards", "size": 4}


def test_an_entry_starts_at_zero_unless_a_snapshot_says_otherwise() -> None:
    assert Entry(KEY, 0).consumed == 0
    assert Entry(KEY, 0, {"consumed": 12}).consumed == 12
    assert Entry(KEY, 0).progress is not Entry(KEY, 0).progress


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_a_last_round_that_cannot_be_split_is_rejected_at_the_start(kind: Any) -> None:
    batches = samplers.distribute(samplers.LengthBucketBatchSampler([1] * 5, 2, shuffle=False), 0, 2, tail="exact")
    loader = kind(list(range(5)), batch_sampler=batches)
    with pytest.raises(BadOption, match='tail="exact"'):
        iter(loader)
