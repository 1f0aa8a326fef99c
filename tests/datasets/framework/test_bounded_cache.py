"""Recently used entries are kept up to a limit, and evicted ones are freed."""

from __future__ import annotations

import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.testing.asserting import apart


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5000)), max_size=60), st.integers(0, 20_000))
def test_the_limit_is_respected(asked: list[tuple[int, int]], limit: int) -> None:
    cache = BoundedCache[int, int](limit)
    sizes: dict[int, int] = {}
    for key, size in asked:
        size = sizes.setdefault(key, size)
        assert cache.load(key, lambda key=key, size=size: (key, size)) == key  # type: ignore[misc]
        assert cache.held <= limit or len(cache) == 1
    cache.clear()
    assert (len(cache), cache.held) == (0, 0)


def test_one_of_several_threads_loads_an_entry() -> None:
    cache = BoundedCache[str, int](10**6)
    made: list[int] = []
    ready = threading.Barrier(4)

    def load() -> tuple[int, int]:
        made.append(1)
        return 7, 1

    def ask(_: int) -> int:
        ready.wait()
        return cache.load("a", load)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [7] * 4
    assert made == [1]


def test_errors_are_not_cached() -> None:
    cache = BoundedCache[str, int](10**6)
    with pytest.raises(ZeroDivisionError):
        cache.load("a", lambda: (1 // 0, 1))
    assert cache.load("a", lambda: (1, 1)) == 1


def test_works_after_a_fork_while_a_thread_held_the_lock() -> None:
    cache = BoundedCache[str, int](10**6)
    cache.load("a", lambda: (1, 1))
    with cache._lock, cache._doors[hash("b") % len(cache._doors)]:
        assert apart(lambda: (cache.load("a", lambda: (2, 1)), cache.load("b", lambda: (3, 1)))) == (1, 3)


def test_a_pickled_cache_is_empty() -> None:
    cache = BoundedCache[str, int](77)
    cache.load("a", lambda: (1, 1))
    other = pickle.loads(pickle.dumps(cache))
    assert (len(other), other.limit) == (0, 77)


class Value:
    pass


@given(limit=st.integers(0, 6), steps=st.lists(st.tuples(st.sampled_from("pgd"), st.integers(0, 6)), max_size=60))
def test_evicted_entries_are_freed_least_recently_used_first(limit: int, steps: list[tuple[str, int]]) -> None:
    alive: weakref.WeakValueDictionary[int, Value] = weakref.WeakValueDictionary()
    cache = BoundedCache[int, Value](limit)
    model: list[int] = []
    for kind, key in steps:
        if kind == "p" and key not in model:
            alive[key] = value = Value()
            cache.put(key, value)
            del value
            model.append(key)
            del model[: max(0, len(model) - max(limit, 1))]
        elif kind == "d" and key in model:
            cache.drop(key)
            model.remove(key)
        elif kind == "g":
            assert (cache.get(key) is not None) == (key in model)
            if key in model:
                model.append(model.pop(model.index(key)))
        assert sorted(alive) == sorted(model)
    cache.clear()
    assert not alive
