"""The alias table is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.samplers.alias import AliasTable, integers
from tests.samplers.chi_square import assert_fits

weight = st.floats(0, 1e308) | st.sampled_from([0.0, 1.0, 1.0, 5e-324, 1e-30, 1e308])
weights = st.lists(weight, min_size=1, max_size=60).filter(any)


def shares(table: AliasTable) -> NDArray[np.int64]:
    """The integer weight with which the table draws each number."""
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
    # Zero is never drawn, and rounding is far below what anybody could count.
    assert not wanted[array == 0].any()
    exact = array / array.max() / (array / array.max()).sum()
    assert np.allclose(wanted / total, exact, rtol=1e-9, atol=2.0**-50)


@pytest.mark.parametrize("count", [1000, 100_003])
@pytest.mark.parametrize("power", [0, 1, 20])
def test_large_tables_are_exact(count: int, power: int) -> None:
    array = np.random.default_rng(count).random(count) ** power
    table = AliasTable(array)
    assert np.array_equal(shares(table), integers(array, count << table.height_bits))


def test_equal_weights_need_no_alias() -> None:
    table = AliasTable(np.full(10, 0.1))
    assert table.alias.tolist() == list(range(10))


def test_draws_follow_the_weights() -> None:
    array = np.array([1.0, 0.0, 2.0, 10.0, 0.5, 3.0])
    drawn = AliasTable(array).draw(np.arange(60_000), key=3)
    counts = np.bincount(drawn, minlength=6)
    assert counts[1] == 0
    kept = array > 0
    assert_fits(counts[kept], array[kept] / array.sum() * 60_000)


def test_repr_tells_the_size() -> None:
    assert repr(AliasTable(np.ones(3))) == "AliasTable(3 weights)"
