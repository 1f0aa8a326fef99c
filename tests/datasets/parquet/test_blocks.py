from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.parquet.blocks import _OWN_BYTES, Blocks


def test_the_ones_used_last_are_kept() -> None:
    blocks = Blocks[str](2 * (100 + _OWN_BYTES))
    for key in "abac":
        assert blocks.get(key, lambda key=key: (key.upper(), 100)) == key.upper()  # type: ignore[misc]
    assert [blocks.get(key, lambda: ("made anew", 100)) for key in "acb"] == ["A", "C", "made anew"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=60), st.integers(0, 20_000))
def test_the_limit_holds(asked: list[tuple[int, int]], limit: int) -> None:
    blocks = Blocks[int](limit)
    sizes: dict[int, int] = {}
    for key, size in asked:
        size = sizes.setdefault(key, size)
        assert blocks.get(key, lambda key=key, size=size: (key, size)) == key  # type: ignore[misc]
        assert blocks.held_bytes <= limit or len(blocks) == 1
    blocks.clear()
    assert (len(blocks), blocks.held_bytes) == (0, 0)


def test_of_several_threads_one_makes_an_entry() -> None:
    blocks = Blocks[int](10**6)
    made: list[int] = []
    ready = threading.Barrier(4)

    def load() -> tuple[int, int]:
        made.append(1)
        return 7, 1

    def ask(_: int) -> int:
        ready.wait()
        return blocks.get("a", load)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [7] * 4
    assert made == [1]


def test_an_error_is_not_kept() -> None:
    blocks = Blocks[int](10**6)
    failures = iter([True, False])

    def load() -> tuple[int, int]:
        if next(failures):
            raise OSError("not now")
        return 1, 1

    try:
        blocks.get("a", load)
    except OSError:
        assert blocks.get("a", load) == 1


def test_a_fork_while_a_thread_holds_the_lock() -> None:
    blocks = Blocks[int](10**6)
    blocks.get("a", lambda: (1, 1))
    with blocks._lock, blocks._doors[hash("b") % len(blocks._doors)]:
        pid = os.fork()
        if pid == 0:
            whole = blocks.get("a", lambda: (2, 1)) == 1 and blocks.get("b", lambda: (3, 1)) == 3
            os._exit(0 if whole else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_pickled_it_is_empty() -> None:
    blocks = Blocks[int](77)
    blocks.get("a", lambda: (1, 1))
    other = pickle.loads(pickle.dumps(blocks))
    assert (len(other), other.limit_bytes) == (0, 77)
