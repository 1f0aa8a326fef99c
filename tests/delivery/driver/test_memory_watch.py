"""Workers that grow are named, workers that have too much are told of; a clock and an engine stand in for real ones."""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.abc import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver import memory_watch
from feedline.delivery.driver.memory_watch import (
    _EVERY_S,
    _NOTABLE_BYTES,
    _SETTLED_AFTER,
    Growth,
    MemoryWatch,
)
from feedline.system.process import own_bytes, seen_bytes
from feedline.types import Result, Task

MIB = 1 << 20


class Workers(Engine):
    """Processes that are nothing but numbers."""

    def __init__(self, *pids: int | None) -> None:
        self.worker_count = len(pids)
        self.processes = list(pids)

    def open(self, spec: WorkerSpec) -> None:
        raise NotImplementedError

    def submit(self, worker: int, task: Task) -> None:
        raise NotImplementedError

    def revoke(self, worker: int) -> int | None:
        raise NotImplementedError

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        raise NotImplementedError

    def pid(self, worker: int) -> int | None:
        return self.processes[worker]

    def close(self) -> None:
        raise NotImplementedError


def say_memory(patches: pytest.MonkeyPatch, memory: Callable[[int], int | None]) -> None:
    """Say how much memory each process has."""
    patches.setattr(memory_watch, "seen_bytes", memory)
    patches.setattr(memory_watch, "own_bytes", memory)


class Bench:
    """A watch, and how much memory each process is said to have. Every worker has answered once."""

    def __init__(self, patches: pytest.MonkeyPatch, *pids: int | None, most_bytes: int | None = None) -> None:
        self.memory: dict[int, Any] = {pid: 100 * MIB for pid in pids if pid is not None}
        self.engine = Workers(*pids)
        self.watch = MemoryWatch(self.engine, most_bytes)
        say_memory(patches, self.memory.__getitem__)
        for worker in range(len(pids)):
            assert self.watch.begin(worker) is None

    def look(self, times: int = 1) -> list[Growth | int]:
        return [found for _ in range(times) for found in self.watch.look(0.0)]


def test_a_worker_that_grows_after_it_settled_is_named_once_per_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, 12)
    assert bench.look(_SETTLED_AFTER) == []
    bench.memory[12] = 100 * MIB + _NOTABLE_BYTES
    assert bench.look() == []
    bench.memory[12] += 1
    assert bench.look() == [Growth(1, 12, 100 * MIB, 100 * MIB + _NOTABLE_BYTES + 1)]
    assert bench.look(10) == []
    bench.memory[12] = 100 * MIB + 2 * (_NOTABLE_BYTES + 1)
    assert bench.look() == []
    bench.memory[12] += 1
    assert [growth.now_bytes for growth in bench.look(10) if isinstance(growth, Growth)] == [bench.memory[12]]


def test_what_a_worker_takes_while_it_settles_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    for look in range(_SETTLED_AFTER):
        bench.memory[11] = look * 10 * _NOTABLE_BYTES
        assert bench.look() == []
    assert bench.look(20) == []


def test_a_worker_that_shrinks_and_comes_back_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    bench.memory[11] = 3 * _NOTABLE_BYTES
    bench.look(_SETTLED_AFTER)
    bench.memory[11] = 0
    assert bench.look(3) == []
    bench.memory[11] = 4 * _NOTABLE_BYTES
    assert bench.look(3) == []


def test_a_worker_that_was_replaced_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    bench.look(_SETTLED_AFTER)
    bench.watch.forget(0)
    assert 0 not in bench.watch.records
    bench.engine.processes[0] = 21
    bench.memory[21] = 10 * _NOTABLE_BYTES
    assert bench.look(20) == []
    assert bench.watch.begin(0) is None
    assert 0 in bench.watch.records
    assert bench.look(20) == []
    bench.memory[21] = 12 * _NOTABLE_BYTES
    assert [growth.pid for growth in bench.look(20) if isinstance(growth, Growth)] == [21]


def test_workers_that_have_too_much_are_told_of_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, 12, 13, most_bytes=100 * MIB)
    assert bench.look() == []
    bench.memory[11] = bench.memory[13] = 100 * MIB + 1
    assert bench.look() == [0, 2]
    assert bench.look() == [0, 2]


def test_too_much_is_told_from_the_first_look_on_and_instead_of_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, most_bytes=_NOTABLE_BYTES)
    bench.memory[11] = _NOTABLE_BYTES + 1
    assert bench.look(2) == [0, 0]
    bench.memory[11] = 0
    bench.look(_SETTLED_AFTER)
    bench.memory[11] = 10 * _NOTABLE_BYTES
    assert bench.look() == [0]


def test_workers_that_are_no_processes_or_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, None, 12, 13, most_bytes=100 * MIB)
    bench.memory[12], bench.memory[13] = None, 101 * MIB
    assert bench.look() == [2]


def test_a_worker_is_not_looked_at_before_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    say_memory(monkeypatch, lambda pid: 10**12)
    watch = MemoryWatch(Workers(11), 1)
    assert 0 not in watch.records
    assert list(watch.look(0.0)) == []


def test_a_worker_that_begins_with_too_much_is_kept_and_its_growth_counts_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = {11: 4 * _NOTABLE_BYTES}
    say_memory(monkeypatch, memory.__getitem__)
    watch = MemoryWatch(Workers(11), 1 * MIB)
    told = watch.begin(0)
    assert told is not None
    assert "2048 MiB" in told
    assert "allows 1." in told
    assert "Raise max_memory_per_worker" in told
    assert [found for _ in range(20) for found in watch.look(0.0)] == []
    memory[11] += _NOTABLE_BYTES + 1
    assert list(watch.look(0.0)) == [Growth(0, 11, 4 * _NOTABLE_BYTES, memory[11])]


def test_the_next_look_is_about_a_second_later() -> None:
    watch = MemoryWatch(Workers(None))
    assert watch.next_s == 0.0
    assert list(watch.look(70.0)) == []
    assert watch.next_s == 70.0 + _EVERY_S


def test_a_look_that_takes_long_is_followed_by_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    times = iter([3.0, 3.5])
    monkeypatch.setattr("feedline.delivery.driver.memory_watch.time.perf_counter", lambda: next(times))
    assert list(bench.watch.look(70.0)) == []
    assert bench.watch.next_s == pytest.approx(70.0 + 0.5 / memory_watch._MOST_SHARE)


def test_what_is_shared_with_the_training_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, most_bytes=200 * MIB)
    monkeypatch.setattr(memory_watch, "seen_bytes", lambda pid: 10**12)
    assert bench.look(20) == []
    bench.memory[11] = 201 * MIB
    assert bench.look() == [0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60))
def test_however_much_a_worker_grows_it_is_named_a_few_times(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patches:
        bench = Bench(patches, 11)
        told: list[Growth] = []
        for size in sorted(sizes):
            bench.memory[11] = size
            told += [found for found in bench.look() if isinstance(found, Growth)]
        grown = [growth.now_bytes - growth.settled_bytes for growth in told]
        assert all(growth > _NOTABLE_BYTES for growth in grown)
        assert all(later > 2 * before for before, later in itertools.pairwise(grown))
        assert len(told) <= 12


def test_a_growth_says_who_how_much_and_what_to_do() -> None:
    text = str(Growth(3, 812, 200 * MIB, 1000 * MIB))
    for part in ("Worker 3 (pid 812)", "grown by 800 MiB", "from 200 to 1000 MiB", "max_memory_per_worker="):
        assert part in text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from Linux's /proc")
@pytest.mark.parametrize("measure", [own_bytes, seen_bytes])
def test_bytes_are_those_of_a_process_itself(measure: Callable[[int], int | None]) -> None:
    before = measure(os.getpid())
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * len(block))
        after = measure(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > 48 * MIB


@pytest.mark.parametrize("measure", [own_bytes, seen_bytes])
def test_bytes_of_a_process_that_is_gone_are_not_known(measure: Callable[[int], int | None]) -> None:
    assert measure(2**22 + 1) is None  # beyond the largest number that Linux gives
