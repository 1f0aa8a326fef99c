"""Ranges that are read together. tests/datasets/framework/test_shard_files.py has the property tests of `coalesced`."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

from feedline.datasets.storage.ranges import coalesced, side_by_side


class Wanted(NamedTuple):
    shard: int
    start: int
    stop: int


def test_reads_do_not_grow_without_bound() -> None:
    many = [Wanted(0, start, start + (1 << 20)) for start in range(0, 1 << 26, 1 << 20)]
    assert all(span.stop - span.start <= 1 << 24 for span in coalesced(many, is_local=lambda shard: True))
    large = coalesced([Wanted(0, 0, 1 << 30)], is_local=lambda shard: True)
    assert [(span.start, span.stop) for span in large] == [(0, 1 << 30)]


def test_calls_run_concurrently_and_results_keep_their_order() -> None:
    together = threading.Barrier(4, timeout=60)

    def act(number: int) -> int:
        together.wait()
        return number * number

    assert side_by_side(act, range(8), 4) == [number * number for number in range(8)]


@pytest.mark.parametrize(("items", "count"), [([], 4), ([3], 4), ([3, 4], 1)])
def test_no_thread_is_started_for_nothing(items: list[int], count: int) -> None:
    threads = side_by_side(lambda item: threading.current_thread(), items, count)
    assert set(threads) <= {threading.current_thread()}
