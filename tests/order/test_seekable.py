"""Plans over feedline's samplers: they can be entered anywhere, by any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.sampler import BatchSampler, IndexArray, Sampler
from feedline.order.seekable import BatchPlan, SamplePlan
from feedline.samplers import RandomSampler, SequentialSampler, distribute
from feedline.types import IndexBlock, Key

KEY = Key(3, 1)


class RecordsRequests(Sampler):
    """Index = place + 1000 * epoch; records how many places were requested."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.requested: list[int] = []

    def size(self) -> int | None:
        return self.count

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        self.requested.append(len(places))
        return places + 1000 * key.epoch


def plan_of(sampler: Sampler, size: int | None = 2, *, drop_last: bool = False, consumed: int = 0) -> SamplePlan:
    return SamplePlan(sampler, size, drop_last=drop_last, key=KEY, draw_key=77, consumed=consumed)


def listed(plan: Any) -> list[Any]:
    return [item.array.tolist() if isinstance(item, IndexBlock) else item for item in plan]


# -- one rank ---


@given(st.integers(1, 60), st.none() | st.integers(1, 7), st.booleans())
def test_batches_are_the_order_cut_up(count: int, size: int | None, drop_last: bool) -> None:
    sampler = RandomSampler(range(count), seed=3)
    order = sampler.at(np.arange(count), KEY).tolist()
    plan = plan_of(sampler, size, drop_last=drop_last)
    if size is None:
        expected: list[Any] = order
    else:
        stop = count // size * size if drop_last else count
        expected = [order[start : start + size] for start in range(0, stop, size)]
    assert listed(plan) == expected
    with pytest.raises(StopIteration):
        next(plan)


@pytest.mark.parametrize("size", [1, 7, 1000, 1024, 1025, 16_384, 20_000, 50_000])
def test_orders_longer_than_a_block_are_complete(size: int) -> None:
    batches = listed(plan_of(SequentialSampler(range(50_000)), size))
    assert [index for batch in batches for index in batch] == list(range(50_000))
    assert {len(batch) for batch in batches[:-1]} <= {size}


def test_indices_are_made_in_blocks_and_the_first_is_small() -> None:
    sampler = RecordsRequests(1_000_000)
    plan = plan_of(sampler, 64)
    assert sampler.requested == []
    for _ in range(16):
        next(plan)
    assert sampler.requested == [1024], "a small block, since the training loop waits for the first batch"
    for _ in range(256):
        next(plan)
    assert sampler.requested == [1024, 16_384]


def test_entering_at_a_distant_place_requests_nothing_before_it() -> None:
    sampler = RecordsRequests(10**12)
    plan = plan_of(sampler, 4, consumed=10**12 - 6)
    assert listed(plan) == [[1000 + 10**12 - 6 + n for n in range(4)], [1000 + 10**12 - 2, 1000 + 10**12 - 1]]
    assert sum(sampler.requested) == 6


# -- ranks ---

counts, sizes, worlds = st.integers(1, 50), st.integers(1, 5), st.integers(1, 5)
# -- random numbers ---


# -- batch samplers ---


class Batches(BatchSampler):
    """Batch n is [epoch, n]."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def size(self) -> int | None:
        return self.count

    def batch(self, number: int, key: Key) -> IndexArray:
        assert self.count is None or 0 <= number < self.count
        return np.array([key.epoch, number])


def batch_plan(sampler: Any, consumed: int = 0) -> BatchPlan:
    return BatchPlan(sampler, key=KEY, draw_key=77, consumed=consumed)


def test_draw_keys_of_batches_differ_on_all_ranks() -> None:
    draws = set()
    for rank in range(3):
        share: Any = distribute(Batches(9), rank, 3)
        plan = batch_plan(share)
        draws |= {plan.draw(number).key for number in range(3)}
    alone = batch_plan(Batches(9))
    assert draws == {alone.draw(number).key for number in range(9)}
    assert len(draws) == 9
