"""Turns of a mixture: exact for every prefix, and without a regular pattern."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feedline.randomness.turns import SIZE, Turns
from tests.samplers.chi_square import assert_fits
from tests.sampling import examples

weights = st.lists(st.integers(0, 100) | st.floats(0, 1e6) | st.just(1), min_size=1, max_size=8)
keys = st.integers(0, 2**64 - 1)


@settings(max_examples=examples(15))
@given(weights, keys)
def test_proportions_hold_up_to_every_place(weights: list[float], key: int) -> None:
    assume(any(weights))
    numbers, turns = Turns(weights, key).at(np.arange(600))
    shares = np.array(weights) / sum(weights)
    counts = np.cumsum(numbers[:, None] == np.arange(len(weights)), axis=0)
    # Shares are rounded to multiples of 1 / SIZE.
    assert np.abs(counts - np.arange(1, 601)[:, None] * shares).max() < 1 + 600 * len(weights) / SIZE
    for number, weight in enumerate(weights):
        assert turns[numbers == number].tolist() == list(range(counts[-1, number]))
        assert weight > 0 or counts[-1, number] == 0


@settings(max_examples=examples(15))
@given(weights, keys, st.lists(st.integers(0, 2**63 - 1), max_size=8))
def test_one_place_equals_one_of_many(weights: list[float], key: int, places: list[int]) -> None:
    assume(any(weights))
    turns_of = Turns(weights, key)
    numbers, turns = turns_of.at(np.array(places, np.int64))
    assert list(zip(numbers.tolist(), turns.tolist(), strict=True)) == [turns_of.one(place) for place in places]


@settings(max_examples=examples(15))
@given(weights, keys, st.integers(2**40, 2**62))
def test_turns_are_consecutive_at_distant_places(weights: list[float], key: int, start: int) -> None:
    assume(any(weights))
    numbers, turns = Turns(weights, key).at(np.arange(start, start + 300))
    for number in set(numbers.tolist()):
        assert (np.diff(turns[numbers == number]) == 1).all()


@pytest.mark.parametrize(("weights", "stride"), [([1, 1], 2), ([3, 1], 4), ([1, 1, 1, 1], 8), ([2, 1, 1], 3)])
def test_every_rank_gets_the_same_proportions(weights: list[float], stride: int) -> None:
    numbers, _ = Turns(weights, key=1).at(np.arange(24_000))
    shares = np.array(weights) / sum(weights)
    for rank in range(stride):
        own = numbers[rank::stride]
        assert_fits(np.bincount(own, minlength=len(weights)), shares * len(own))


def test_zero_and_extreme_weights() -> None:
    only, turns = Turns([0, 5, 0], key=1).at(np.arange(4))
    assert only.tolist() == [1] * 4
    assert turns.tolist() == [0, 1, 2, 3]
    rare, _ = Turns([1, 1e-300], key=1).at(np.arange(SIZE))
    assert rare.sum() == 1
    assert pickle.loads(pickle.dumps(Turns([1, 2], 3))).one(5) == Turns([1, 2], 3).one(5)
