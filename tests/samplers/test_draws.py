"""Random numbers by position: exact, and independent of the other positions requested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.randomness.keys import mix
from feedline.samplers import draws
from feedline.samplers.draws import AliasTable, draw_below, draw_exponential, integers
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


@pytest.mark.parametrize("bound", [3 * 2**61, 2**62 + 1])
def test_numbers_that_would_be_more_likely_are_drawn_again(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # Without a second draw, 3 * 2**61 makes two in eight numbers twice as likely as the others.
    assert_fits(np.bincount(drawn % 3, minlength=3))


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


def shares(table: AliasTable) -> NDArray[np.int64]:
    """Return the integer weight with which the table draws each number."""
    height = 1 << table.height_bits
    assert table.threshold.min() >= 0
    assert table.threshold.max() <= height
    found = table.threshold.copy()
    np.add.at(found, table.alias, height - table.threshold)
    return found


@given(weights)
@example([1.0])
@example([1.0] * 7)
@example([0.0, 0.0, 1.0])
@example([3.0, 1.0, 0.0, 0.0])
@example([0.1, 0.1, 0.1, 0.7, 1.0, 2.0])
def test_table_draws_the_integer_weights_exactly(given_weights: list[float]) -> None:
    array = np.array(given_weights)
    table = AliasTable(array)
    total = len(array) << table.height_bits
    wanted = integers(array, total)
    assert total < 1 << 62
    assert int(wanted.sum()) == total
    assert np.array_equal(shares(table), wanted)
    # Zero is never drawn, and rounding errors are too small to measure.
    assert not wanted[array == 0].any()
    exact = array / array.max() / (array / array.max()).sum()
    assert np.allclose(wanted / total, exact, rtol=1e-9, atol=2.0**-50)


@pytest.mark.parametrize("count", [1000, 100_003])
@pytest.mark.parametrize("power", [0, 1, 20])
def test_large_tables_are_exact(count: int, power: int) -> None:
    array = np.random.default_rng(count).random(count) ** power
    table = AliasTable(array)
    assert np.array_equal(shares(table), integers(array, count << table.height_bits))


def test_draws_follow_the_weights() -> None:
    array = np.array([1.0, 0.0, 2.0, 10.0, 0.5, 3.0])
    drawn = AliasTable(array).draw(np.arange(60_000), key=3)
    counts = np.bincount(drawn, minlength=6)
    assert counts[1] == 0
    kept = array > 0
    assert_fits(counts[kept], array[kept] / array.sum() * 60_000)
