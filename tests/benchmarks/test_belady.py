"""Belady's bound is what the best possible cache fetches."""

from __future__ import annotations

import functools
import itertools

import hypothesis.strategies as st
from hypothesis import given

from benchmarks.belady import least_bytes

Accesses = list[tuple[str, int]]


def by_trying_all(accesses: Accesses, capacity: int) -> int:
    """Try every cache: after each access, it may drop any bytes and keep any of those just read."""
    sizes = dict(accesses)
    names = sorted(sizes)

    @functools.cache
    def fewest(place: int, kept: tuple[int, ...]) -> int:
        if place == len(accesses):
            return 0
        read = names.index(accesses[place][0])
        most = [sizes[name] if n == read else kept[n] for n, name in enumerate(names)]
        choices = itertools.product(*(range(count + 1) for count in most))
        best = min(fewest(place + 1, choice) for choice in choices if sum(choice) <= capacity)
        return sizes[names[read]] - kept[read] + best

    return fewest(0, (0,) * len(names))


@st.composite
def runs(draw: st.DrawFn) -> Accesses:
    """Draw accesses to up to three objects of up to three bytes."""
    sizes = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1))
    order = draw(st.lists(st.sampled_from(sorted(sizes)), max_size=7))
    return [(name, sizes[name]) for name in order]


@given(runs(), st.integers(0, 7))
def test_the_bound_equals_the_best_of_all_caches(accesses: Accesses, capacity: int) -> None:
    assert least_bytes(accesses, capacity) == by_trying_all(accesses, capacity)


def test_without_capacity_everything_is_fetched() -> None:
    assert least_bytes([("a", 3), ("a", 3), ("b", 2)], 0) == 8


def test_a_cache_for_everything_fetches_each_object_once() -> None:
    assert least_bytes([("a", 3), ("b", 2), ("a", 3), ("b", 2)], 5) == 5


def test_two_epochs_save_exactly_the_capacity_of_the_cache() -> None:
    first, second = [3, 1, 4, 0, 2], [2, 4, 1, 3, 0]
    accesses = [(f"shard {number}", 10) for number in [*first, *second]]
    assert least_bytes(accesses, 30) == 100 - 30


def test_no_accesses_fetch_nothing() -> None:
    assert least_bytes([], 5) == 0
