"""The search for a sample that kills workers: it ends, finds it, and blames no sample after one accident."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from feedline.delivery.machine.bisection import Bisection

sizes = st.integers(1, 2000)


def search_through(size: int, kills: Callable[[int, int], bool]) -> tuple[Bisection, list[tuple[int, int]]]:
    """Search until there is a result; return the search and its probes."""
    search = Bisection(0, size)
    probes: list[tuple[int, int]] = []
    while search.found is None and not search.failed:
        first, stop = search.probe
        probes.append((first, stop))
        assert 0 <= first < stop <= size
        assert len(probes) <= math.log2(size) + 3, "the search must halve its range"
        if kills(first, stop):
            search.died()
        else:
            search.survived()
    return search, probes


@given(sizes, st.data())
def test_a_killer_is_found_wherever_it_is(size: int, data: st.DataObject) -> None:
    killer = data.draw(st.integers(0, size - 1))
    search, probes = search_through(size, lambda first, stop: first <= killer < stop)
    assert search.found == killer
    assert not search.failed
    assert probes[-2:] == [(killer, killer + 1)] * 2


@given(st.integers(2, 2000), st.data())
def test_the_first_of_several_killers_is_found(size: int, data: st.DataObject) -> None:
    killers = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=5))
    search, _ = search_through(size, lambda first, stop: any(first <= killer < stop for killer in killers))
    assert search.found == min(killers)


@given(sizes)
def test_the_search_fails_if_no_sample_kills_alone(size: int) -> None:
    search, _ = search_through(size, lambda first, stop: False)
    assert search.failed
    assert search.found is None


@given(sizes, st.data())
def test_a_sample_that_kills_alone_only_once_is_not_blamed(size: int, data: st.DataObject) -> None:
    killer = data.draw(st.integers(0, size - 1))
    alone = 0

    def kills(first: int, stop: int) -> bool:
        nonlocal alone
        alone += stop - first == 1 and first == killer
        return first <= killer < stop and (stop - first > 1 or alone == 1)

    search, _ = search_through(size, kills)
    assert alone == 2
    assert search.failed
    assert search.found is None


@given(sizes, st.lists(st.booleans(), max_size=40))
def test_the_search_always_ends_and_blames_only_after_two_deaths_alone(size: int, accidents: list[bool]) -> None:
    answers = iter(accidents)
    deaths: list[tuple[int, int]] = []

    def kills(first: int, stop: int) -> bool:
        died = next(answers, False)
        deaths.extend([(first, stop)] * died)
        return died

    search, _ = search_through(size, kills)
    assert (search.found is not None) != search.failed
    if search.found is not None:
        assert deaths[-2:] == [(search.found, search.found + 1)] * 2


def test_an_empty_batch_has_no_killer() -> None:
    search = Bisection(0, 0)
    assert search.failed
    assert search.found is None


def test_a_search_may_begin_inside_a_batch() -> None:
    search = Bisection(3, 5)
    assert search.probe == (3, 4)
    search.survived()
    assert search.probe == (4, 5)
    search.died()
    assert search.found is None
    search.died()
    assert search.found == 4
