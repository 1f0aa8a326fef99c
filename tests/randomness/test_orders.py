"""Many orders at once: each is a bijection, one by one or all together, and random by the statistics tested here."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.randomness.keys import mix_array
from feedline.randomness.orders import LARGEST, index_at, indices_at
from tests.samplers.chi_square import assert_fits
from tests.sampling import examples

sizes = (
    st.integers(1, 300) | st.integers(1, LARGEST) | st.sampled_from([2**b + d for b in range(1, 32) for d in (-1, 1)])
)
keys = st.integers(0, 2**64 - 1)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 40) | st.sampled_from([1023, 1025]), keys), min_size=1, max_size=8))
def test_every_order_has_each_index_once(orders: list[tuple[int, int]]) -> None:
    places = np.concatenate([np.arange(size) for size, _ in orders])
    element_sizes = np.concatenate([np.full(size, size) for size, _ in orders])
    element_keys = np.concatenate([np.full(size, key, np.uint64) for size, key in orders])
    found = indices_at(places, element_sizes, element_keys)
    start = 0
    for size, _ in orders:
        assert sorted(found[start : start + size].tolist()) == list(range(size))
        start += size


@given(st.lists(st.tuples(sizes, keys, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=5))
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


def test_requests_larger_than_one_piece_are_complete() -> None:
    places = np.arange(50_000)
    found = indices_at(places, np.full(50_000, 50_000), np.full(50_000, 3, np.uint64))
    assert np.array_equal(np.sort(found), places)
    assert index_at(40_000, 50_000, 3) == found[40_000]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_small_sizes_are_equally_likely(size: int) -> None:
    count = 20_000
    places = np.tile(np.arange(size), count)
    many = np.repeat(mix_array(9, np.arange(count)), size)
    found = indices_at(places, np.full(len(places), size), many).reshape(count, size)
    counted = Counter(map(tuple, found.tolist()))
    assert_fits([counted[order] for order in permutations(range(size))])


@pytest.mark.parametrize("size", [13, 100, 1000])
def test_first_places_and_their_distance_are_evenly_spread(size: int) -> None:
    count = 20_000
    many = np.repeat(mix_array(9, np.arange(count)), 2)
    found = indices_at(np.tile([0, 1], count), np.full(2 * count, size), many).reshape(count, 2)
    assert_fits(np.bincount(found[:, 0], minlength=size))
    assert_fits(np.bincount((found[:, 1] - found[:, 0]) % size, minlength=size)[1:])
