"""An order that starts again when it ends, each time as another epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc.sampler import BatchSampler, IndexArray, Sampler
from feedline.order.endless import EndlessBatches, EndlessSampler
from feedline.order.seekable import BatchPlan, SamplePlan
from feedline.samplers import RandomSampler
from feedline.types import Key, Share
from tests.sampling import examples

KEY = Key(3, 5)
counts, worlds = st.integers(1, 12), st.integers(1, 4)


def pass_of(sampler: Sampler, number: int) -> list[int]:
    """Return the order of one epoch, counted from the first."""
    order: list[int] = sampler.at(np.arange(len(sampler)), Key(KEY.seed, KEY.epoch + number)).tolist()
    return order


@settings(max_examples=examples(40))
@given(counts, st.integers(0, 100), st.integers(0, 40))
def test_an_endless_order_is_a_chain_of_epochs(count: int, first: int, length: int) -> None:
    sampler = RandomSampler(range(count), seed=3)
    endless = EndlessSampler(sampler, Share())
    chain = [index for number in range(150 // count + 2) for index in pass_of(sampler, number)]
    assert endless.at(np.arange(first, first + length), KEY).tolist() == chain[first : first + length]
    with pytest.raises(TypeError, match="never ends"):
        len(endless)


@given(st.lists(st.integers(0, 60), max_size=20))
def test_places_can_be_requested_in_any_order(places: list[int]) -> None:
    endless = EndlessSampler(RandomSampler(range(7), seed=3), Share())
    chain = endless.at(np.arange(61), KEY)
    assert endless.at(np.array(places, np.int64), KEY).tolist() == chain[places].tolist()


class CountsCalls(Sampler):
    """Counts calls to `at`."""

    def __init__(self) -> None:
        self.calls = 0

    def size(self) -> int:
        return 1000

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        self.calls += 1
        assert len(places)
        return places


def test_a_distant_place_costs_no_more_than_the_first() -> None:
    sampler = CountsCalls()
    endless = EndlessSampler(sampler, Share())
    endless.at(np.arange(10), KEY)
    endless.at(np.arange(10**12 + 995, 10**12 + 1005), KEY)
    assert sampler.calls == 3, "once for each pass that is read"


class Epochs(Sampler):
    """Index = place + 100 * epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def size(self) -> int:
        return self.count

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return places + 100 * key.epoch


@settings(deadline=None, max_examples=examples(30))
@given(counts, worlds, st.integers(1, 3))
def test_ranks_share_the_endless_order(count: int, world: int, size: int) -> None:
    sampler = Epochs(count)
    whole = EndlessSampler(sampler, Share()).at(np.arange(4 * size * world), KEY).tolist()
    for rank in range(world):
        share = EndlessSampler(sampler, Share(rank, world))
        assert share.at(np.arange(4 * size), KEY).tolist() == whole[rank::world]
        plan = SamplePlan(share, size, drop_last=True, key=KEY)
        planned = [index for _ in range(4) for index in next(plan).array.tolist()]
        assert planned == whole[rank::world], "every batch is full"


class Batches(BatchSampler):
    """Batch n is [epoch, n]."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def size(self) -> int | None:
        return self.count

    def batch(self, number: int, key: Key) -> IndexArray:
        return np.array([key.epoch, number])


def taken(plan: Any, count: int) -> list[list[int]]:
    return [next(plan).array.tolist() for _ in range(count)]


@given(counts, worlds, worlds, st.integers(0, 30))
def test_batches_continue_with_the_next_epoch_on_any_number_of_ranks(
    count: int, world: int, other: int, done: int
) -> None:
    def ranks(world: int, consumed: int) -> list[BatchPlan]:
        shares = [EndlessBatches(Batches(count), Share(rank, world)) for rank in range(world)]
        return [BatchPlan(share, key=KEY, consumed=consumed) for share in shares]

    chain = [[KEY.epoch + place // count, place % count] for place in range(500)]
    plans = ranks(world, 0)
    assert [taken(plan, done) for plan in plans] == [chain[rank : world * done : world] for rank in range(world)]
    state = plans[0].state(done)
    assert state == {"unit": "batches", "consumed": world * done}
    rest = chain[world * done :]
    again = [taken(plan, 5) for plan in ranks(other, world * done)]
    assert again == [rest[rank : other * 5 : other] for rank in range(other)]
