"""The keyed order: each index once, in any sequence of places, and random by all the statistics tested here."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.randomness.bijection import Bijection, index_at, indices_at, small_orders
from feedline.randomness.keys import mix, mix_array
from tests.samplers.chi_square import assert_fits
from tests.sampling import examples

KEYS = [0, 1, 0xFEED, 2**64 - 1]
sizes = (
    st.integers(1, 5000)
    | st.integers(1, 2**63)
    | st.sampled_from([2**b + d for b in range(11, 63) for d in (-1, 0, 1)])
)
any_key = st.integers(0, 2**64 - 1)


def orders(size: int, places: list[int], count: int) -> NDArray[np.int64]:
    """Return the indices at these places under `count` keys, one row per key."""
    asked = np.array(places)
    return np.array([Bijection(size, mix(5, number))(asked) for number in range(count)])


@pytest.mark.parametrize("size", [1023, 1024, 1025, 1088, 1089, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 5000, 70_001])
def test_sizes_around_every_limit_are_permuted(size: int) -> None:
    for key in KEYS:
        assert np.array_equal(np.sort(Bijection(size, key)(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", [2**20 + 1, 10**9, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**48 - 1])
def test_large_sizes_repeat_nothing(size: int) -> None:
    random = np.random.default_rng(1).integers(0, size - 1, 50_000, endpoint=True)
    edges = np.r_[np.arange(1000), size - 1 - np.arange(1000)]
    places = np.unique(np.r_[random, edges])
    indices = Bijection(size, 1)(places)
    assert indices.min() >= 0
    assert indices.max() < size
    assert len(np.unique(indices)) == len(places)


@given(sizes, st.integers(0, 2**64 - 1), st.data())
def test_a_place_gives_the_same_index_alone_or_with_others(size: int, key: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    order = Bijection(size, key)
    together = order(np.array(places, np.int64))
    assert together.dtype == np.int64
    assert together.tolist() == [int(Bijection(size, key)(np.array([place]))[0]) for place in places]
    assert all(0 <= index < size for index in together)


@pytest.mark.parametrize(("size", "place"), [(0, 0), (5, 5), (5, -1), (5000, 5000), (5000, -1), (2000, 2**40)])
def test_places_out_of_range_are_rejected(size: int, place: int) -> None:
    with pytest.raises(IndexError, match=f"place {place} "):
        Bijection(size, 1)(np.array([place]))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_small_sizes_are_equally_likely(size: int) -> None:
    found = small_orders(size, mix_array(5, np.arange(60_000)))
    assert np.array_equal(found[:500], orders(size, list(range(size)), 500))
    counts = Counter(map(tuple, found.tolist()))
    assert_fits([counts[order] for order in permutations(range(size))])


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1024, 1025, 2048, 10_007, 10**6, 10**9, 2**40 + 1, 2**63])
def test_indices_are_evenly_spread_at_any_place(size: int) -> None:
    count, bins = 3000, 50
    edges = np.array([size * number // bins for number in range(1, bins)])
    expected = np.diff(edges.astype(np.float64), prepend=0, append=size) / size * count
    for column in orders(size, [0, 1, 2, size // 2, size - 1], count).T:
        assert_fits(np.bincount(np.searchsorted(edges, column, side="right"), minlength=bins), expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1025, 1500, 4096, 10**6, 10**9, 2**40 + 1])
def test_neighbouring_places_are_independent_over_keys(size: int) -> None:
    found = orders(size, [0, 1, 2, 64], 3000)
    for left, right in [(0, 1), (1, 2), (0, 3)]:
        assert_fits(np.bincount((found[:, left] - found[:, right]) % size * 32 // size, minlength=32))
        pairs = (found[:, left] * 8 // size) * 8 + found[:, right] * 8 // size
        assert_fits(np.bincount(pairs, minlength=64))


@pytest.mark.parametrize(("size", "key"), [(2**17, 0), (10**6, 1), (10**9, 2**64 - 1), (2**40 + 1, 0xFEED)])
def test_steps_within_an_order_are_independent(size: int, key: int) -> None:
    order = Bijection(size, key)(np.arange(1 << 16))
    assert_fits(np.bincount(np.diff(order) % size * 64 // size, minlength=64))
    assert_fits(np.bincount((order[2:] - 2 * order[1:-1] + order[:-2]) % size * 64 // size, minlength=64))
    assert_fits(np.bincount((order[:-1] * 16 // size) * 16 + order[1:] * 16 // size, minlength=256))
    assert_fits(np.bincount((order[1:] ^ order[:-1]) & 31, minlength=32))


def test_memory_does_not_grow_with_the_size() -> None:
    tracemalloc.start()
    try:
        Bijection(10**12, 1)(np.arange(1 << 14))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# -- many orders at once ---


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 40) | st.sampled_from([1023, 1025]), any_key), min_size=1, max_size=8))
def test_every_order_has_each_index_once(orders: list[tuple[int, int]]) -> None:
    places = np.concatenate([np.arange(size) for size, _ in orders])
    element_sizes = np.concatenate([np.full(size, size) for size, _ in orders])
    element_keys = np.concatenate([np.full(size, key, np.uint64) for size, key in orders])
    found = indices_at(places, element_sizes, element_keys)
    start = 0
    for size, _ in orders:
        assert sorted(found[start : start + size].tolist()) == list(range(size))
        start += size


@given(st.lists(st.tuples(sizes, any_key, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=5))
def test_one_element_equals_one_of_many(elements: list[tuple[int, int, float]]) -> None:
    places = [int(where * size) for size, _, where in elements]
    found = indices_at(
        np.array(places),
        np.array([size for size, *_ in elements]),
        np.array([key for _, key, _ in elements], np.uint64),
    )
    alone = [index_at(place, size, key) for place, (size, key, _) in zip(places, elements, strict=True)]
    assert found.tolist() == alone
    assert all(0 <= index < size for index, (size, *_) in zip(alone, elements, strict=True))
