"""Random numbers by position: independent of the other positions requested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.samplers import draws
from feedline.samplers.draws import WeightTable, draw_below, draw_fraction
from tests.samplers.chi_square import assert_fits


@given(st.integers(1, 2**63), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62)))
def test_draws_are_below_their_bound_and_depend_on_their_place_alone(bound: int, key: int, places: list[int]) -> None:
    drawn = draw_below(bound, np.array(places, np.int64), key).tolist()
    assert all(0 <= number < bound for number in drawn)
    assert drawn == [draw_below(bound, np.array([place]), key).item() for place in places]


def test_numbers_and_fractions_are_equally_likely() -> None:
    places = np.arange(100_000)
    assert_fits(np.bincount(draw_below(20, places, 4), minlength=20))
    assert_fits(np.bincount((draw_fraction(places, 4) * 20).astype(int), minlength=20))


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1])
def test_fractions_are_neither_0_nor_1(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "mix_array", lambda key, places: np.array([word], np.uint64))
    (fraction,) = draw_fraction(np.array([0]), 1)
    assert 0 < fraction < 1
    drawn = WeightTable(np.array([0.0, 1.0, 0.3, 0.0])).draw(np.array([0]), 1)
    assert drawn.tolist() == [2 if word == 2**64 - 1 else 1]


def test_draws_follow_the_weights() -> None:
    array = np.array([1.0, 0.0, 2.0, 10.0, 0.5, 3.0])
    for scale in (1, 1e300, 1e-300):
        counts = np.bincount(WeightTable(scale * array).draw(np.arange(60_000), key=3), minlength=6)
        assert counts[1] == 0
        kept = array > 0
        assert_fits(counts[kept], array[kept] / array.sum() * 60_000)
