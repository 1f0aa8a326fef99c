"""Orders of indices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.plan.order import grouped, sequential, shuffled

counts = st.integers(0, 500) | st.sampled_from([(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])


@given(counts)
def test_sequential_is_all_indices_in_order(count: int) -> None:
    blocks = [*sequential(count), np.empty(0, np.int64)]
    assert np.array_equal(np.concatenate(blocks), np.arange(count))
    assert all(block.dtype == np.int64 for block in blocks)


@given(counts, st.integers(0, 2**64), st.integers(0, 10))
def test_shuffled_is_all_indices_and_follows_from_seed_and_epoch(count: int, seed: int, epoch: int) -> None:
    (order,) = shuffled(count, seed=seed, epoch=epoch)
    (again,) = shuffled(count, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, again)
    assert order.dtype == np.int64


def test_another_seed_or_epoch_is_another_order() -> None:
    orders = [next(shuffled(100, seed=seed, epoch=epoch)).tolist() for seed in range(3) for epoch in range(3)]
    orders += [next(shuffled(100, seed=None, epoch=0)).tolist() for _ in range(3)]
    assert len({tuple(order) for order in orders}) == len(orders)


@given(st.lists(st.integers()), st.integers(1, 7), st.booleans())
def test_groups_are_the_indices_in_order(indices: list[int], batch_size: int, drop_last: bool) -> None:
    groups = list(grouped(indices, batch_size, drop_last=drop_last))
    assert all(len(group) == batch_size for group in groups[:-1])
    joined = [index for group in groups for index in group]
    if drop_last:
        assert len(joined) == len(indices) // batch_size * batch_size
    assert joined == indices[: len(joined)]
    assert drop_last or joined == indices


def test_groups_ask_for_no_index_before_its_time() -> None:
    asked: list[int] = []

    def sampler() -> Iterator[int]:
        for index in range(10):
            asked.append(index)
            yield index
        pytest.fail("asked beyond the last group that was wanted")

    groups = grouped(sampler(), 5, drop_last=False)
    assert asked == []
    next(groups)
    assert asked == [0, 1, 2, 3, 4]
