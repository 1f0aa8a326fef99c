"""Random numbers by place: exact, and the same whichever places are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.randomness.keys import mix
from feedline.samplers import draws
from feedline.samplers.draws import draw_below, draw_exponential
from tests.samplers.chi_square import assert_fits

bounds = st.integers(1, 2**63) | st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63])


@given(bounds, st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62)))
def test_high_half_of_the_product(bound: int, key: int, places: list[int]) -> None:
    drawn = draw_below(bound, np.array(places, np.int64), key)
    for place, number in zip(places, drawn.tolist(), strict=True):
        product, attempt = mix(key, place) * bound, 0
        while product % 2**64 < 2**64 % bound:
            attempt += 1
            product = mix(mix(key, attempt), place) * bound
        assert number == product >> 64


@pytest.mark.parametrize("bound", [3 * 2**61, 2**62 + 1])
def test_what_would_be_likelier_than_the_rest_is_drawn_again(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(key: int, attempt: int) -> int:
        asked.append(attempt)
        return mix(key, attempt)

    monkeypatch.setattr(draws, "mix", noted)
    drawn = draw_below(bound, np.arange(20_000), 1)
    assert asked[0] == 1
    assert drawn.min() >= 0
    assert drawn.max() < bound
    assert_fits(np.bincount((drawn.astype(np.float64) / bound * 32).astype(np.int64), minlength=32))
    # Without a second draw, 3 * 2**61 gives two in eight numbers twice the chance of the others.
    assert_fits(np.bincount(drawn % 3, minlength=3))


@pytest.mark.parametrize("bound", [1, 2, 7, 100])
def test_small_bounds_are_uniform(bound: int) -> None:
    counts = np.bincount(draw_below(bound, np.arange(50_000), 9), minlength=bound)
    assert counts.sum() == 50_000
    if bound > 1:
        assert_fits(counts)


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
