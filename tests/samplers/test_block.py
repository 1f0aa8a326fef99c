"""Blocks in random order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers import BlockSampler
from feedline.types import Key
from tests.sampling import examples

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any)


@settings(max_examples=examples(60))
@given(sizes=SIZES, window=st.integers(1, 40), epoch=st.integers(0, 3))
def test_every_index_comes_once_and_blocks_stay_within_the_window(sizes: list[int], window: int, epoch: int) -> None:
    sampler = BlockSampler(sizes, window, seed=7)
    order = sampler.at(np.arange(len(sampler)), Key(7, epoch))
    assert sorted(order.tolist()) == list(range(sum(sizes)))
    owner = np.repeat(np.arange(len(sizes)), sizes)[order]
    # At every position, at most `window` blocks have started and not ended.
    places = [np.flatnonzero(owner == block) for block in range(len(sizes)) if sizes[block]]
    begun = np.zeros(len(order) + 1, np.int64)
    for found in places:
        begun[found[0]] += 1
        begun[found[-1] + 1] -= 1
    assert np.cumsum(begun).max() <= window


def test_samples_of_a_window_are_mixed() -> None:
    order = list(BlockSampler([50] * 8, window=4, seed=3))
    owners = [index // 50 for index in order]
    assert len(set(owners[:200])) == len(set(owners[200:])) == 4
    assert len(set(owners[:20])) == 4  # not one block after the other
    neighbours = sum(abs(one - other) == 1 for one, other in itertools.pairwise(order))
    assert neighbours < 20


def test_the_description_differs_by_window_and_sizes() -> None:
    described = BlockSampler([5] * 9, window=2).describe()
    assert described != BlockSampler([5] * 9, window=3).describe()
    assert described != BlockSampler([9] * 5, window=2).describe()


@pytest.mark.parametrize(
    ("sizes", "window", "message"),
    [
        ([], 1, "not a list of block sizes"),
        ([3, -1], 1, "-1 samples"),
        ([0, 0], 1, "no samples"),
        ([3], 0, "window=0"),
    ],
)
def test_rejects_bad_sizes_and_windows(sizes: object, window: int, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        BlockSampler(sizes, window)
