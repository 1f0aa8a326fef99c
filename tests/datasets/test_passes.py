"""Passes: none comes twice before all came once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.passes import Passes
from feedline.randomness.orders import LARGEST


@settings(max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 2**64 - 1))
def test_every_pass_has_each_index_once(sizes: list[int], key: int) -> None:
    passes = Passes(sizes, key)
    for number, size in enumerate(sizes):
        turns = np.arange(4 * size)
        indices = passes.at(np.full(len(turns), number), turns)
        assert indices.tolist() == [passes.one(number, turn) for turn in turns.tolist()]
        for one in indices.reshape(4, size):
            assert sorted(one.tolist()) == list(range(size))


def test_passes_and_datasets_have_orders_of_their_own() -> None:
    passes = Passes([20, 20], 1)
    orders = [[passes.one(number, turn + 20 * count) for turn in range(20)] for number in (0, 1) for count in (0, 1, 2)]
    assert len(set(map(tuple, orders))) == 6


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1, 2**62])
def test_large_datasets(size: int) -> None:
    passes = Passes([3, size], 1)
    numbers, turns = np.array([1, 0, 1, 1]), np.array([0, 7, size - 1, size])
    indices = passes.at(numbers, turns).tolist()
    assert indices == [passes.one(*pair) for pair in zip(numbers.tolist(), turns.tolist(), strict=True)]
    assert all(0 <= index < size for index in indices)
    assert len(set(indices)) == 4
