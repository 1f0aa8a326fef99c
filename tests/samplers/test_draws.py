"""Random numbers by position: exact, and independent of the other positions requested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.randomness.keys import mix
from feedline.samplers import draws
from feedline.samplers.draws import WeightTable, draw_below, draw_exponential, integers
from tests.samplers.chi_square import assert_fits

bounds = st.integers(1, 2**63) | st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63])


@given(bounds, st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62)))
def test_draws_are_the_high_half_of_the_product(bound: int, key: int, places: list[int]) -> None:
    drawn = draw_below(bound, np.array(places, np.int64), key)
    for place, number in zip(places, drawn.tolist(), strict=True):
        product, attempt = mix(key, place) * bound, 0
        while product % 2**64 < 2**64 % bound:
            attempt += 1
            product = mix(mix(key, attempt), place) * bound
        assert number == product >> 64


def test_exponential_times() -> None:
    times = draw_exponential(np.arange(100_000), 4)
    assert times.min() > 0
    assert np.isfinite(times).all()
    quantiles = -np.log1p(-np.arange(1, 20) / 20)
    assert_fits(np.bincount(np.searchsorted(quantiles, times), minlength=20))
    assert np.array_equal(times[::-3], draw_exponential(np.arange(100_000)[::-3], 4))


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1])
def test_exponential_times_of_extreme_bits(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "mix_array", lambda key, places: np.array([word], np.uint64))
    (time,) = draw_exponential(np.array([0]), 1)
    assert 0 < time < 40


weight = st.floats(0, 1e308) | st.sampled_from([0.0, 1.0, 1.0, 5e-324, 1e-30, 1e308])
weights = st.lists(weight, min_size=1, max_size=60).filter(any)


@given(weights)
def test_integers_are_in_proportion_to_the_weights_and_sum_up_exactly(given_weights: list[float]) -> None:
    array = np.array(given_weights)
    found = integers(array, 1 << 62)
    assert int(found.sum()) == 1 << 62
    assert found.min() >= 0
    assert not found[array == 0].any(), "zero is never drawn"
    exact = array / array.max() / (array / array.max()).sum()
    assert np.allclose(found / 2.0**62, exact, rtol=1e-9, atol=2.0**-50)


def test_draws_follow_the_weights() -> None:
    array = np.array([1.0, 0.0, 2.0, 10.0, 0.5, 3.0])
    drawn = WeightTable(array).draw(np.arange(60_000), key=3)
    counts = np.bincount(drawn, minlength=6)
    assert counts[1] == 0
    kept = array > 0
    assert_fits(counts[kept], array[kept] / array.sum() * 60_000)


def test_the_range_of_a_number_begins_where_that_of_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.array([0, (1 << 60) - 1, 1 << 60, (1 << 62) - 1])
    monkeypatch.setattr(draws, "draw_below", lambda bound, places, key: drawn)
    assert WeightTable(np.array([0.0, 1.0, 0.0, 3.0, 0.0])).draw(np.arange(4), key=1).tolist() == [1, 1, 3, 3]
