"""The watch reports workers that grow or use too much memory; clock and engine are fakes."""

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
    """A fake engine whose workers are just pids."""

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


def set_memory(patches: pytest.MonkeyPatch, memory: Callable[[int], int | None]) -> None:
    """Set how much memory each process appears to have."""
    patches.setattr(memory_watch, "seen_bytes", memory)
    patches.setattr(memory_watch, "own_bytes", memory)


class Bench:
    """A watch, and how much memory each process appears to have. Every worker has answered once."""

    def __init__(self, patches: pytest.MonkeyPatch, *pids: int | None, most_bytes: int | None = None) -> None:
        self.memory: dict[int, Any] = {pid: 100 * MIB for pid in pids if pid is not None}
        self.engine = Workers(*pids)
        self.watch = MemoryWatch(self.engine, most_bytes)
        set_memory(patches, self.memory.__getitem__)
        for worker in range(len(pids)):
            assert self.watch.begin(worker) is None

    def look(self, times: int = 1) -> list[Growth | int]:
        return [found for _ in range(times) for found in self.watch.look(0.0)]


def test_a_worker_that_grows_after_it_settled_is_reported_once_per_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_memory_taken_while_a_worker_settles_is_not_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    for look in range(_SETTLED_AFTER):
        bench.memory[11] = look * 10 * _NOTABLE_BYTES
        assert bench.look() == []
    assert bench.look(20) == []


def test_a_worker_that_shrinks_and_grows_back_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    bench.memory[11] = 3 * _NOTABLE_BYTES
    bench.look(_SETTLED_AFTER)
    bench.memory[11] = 0
    assert bench.look(3) == []
    bench.memory[11] = 4 * _NOTABLE_BYTES
    assert bench.look(3) == []


def test_a_replaced_worker_is_measured_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_workers_over_the_limit_are_reported_on_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, 12, 13, most_bytes=100 * MIB)
    assert bench.look() == []
    bench.memory[11] = bench.memory[13] = 100 * MIB + 1
    assert bench.look() == [0, 2]
    assert bench.look() == [0, 2]


def test_exceeding_the_limit_is_reported_from_the_first_look_instead_of_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, most_bytes=_NOTABLE_BYTES)
    bench.memory[11] = _NOTABLE_BYTES + 1
    assert bench.look(2) == [0, 0]
    bench.memory[11] = 0
    bench.look(_SETTLED_AFTER)
    bench.memory[11] = 10 * _NOTABLE_BYTES
    assert bench.look() == [0]


def test_workers_that_are_gone_or_not_processes_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, None, 12, 13, most_bytes=100 * MIB)
    bench.memory[12], bench.memory[13] = None, 101 * MIB
    assert bench.look() == [2]


def test_a_worker_is_not_measured_before_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, lambda pid: 10**12)
    watch = MemoryWatch(Workers(11), 1)
    assert 0 not in watch.records
    assert list(watch.look(0.0)) == []


def test_a_worker_that_starts_over_the_limit_is_kept_and_its_growth_counts_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = {11: 4 * _NOTABLE_BYTES}
    set_memory(monkeypatch, memory.__getitem__)
    watch = MemoryWatch(Workers(11), 1 * MIB)
    message = watch.begin(0)
    assert message is not None
    assert "2048 MiB" in message
    assert "allows 1." in message
    assert "Raise max_memory_per_worker" in message
    assert [found for _ in range(20) for found in watch.look(0.0)] == []
    memory[11] += _NOTABLE_BYTES + 1
    assert list(watch.look(0.0)) == [Growth(0, 11, 4 * _NOTABLE_BYTES, memory[11])]


def test_the_next_look_is_about_a_second_later() -> None:
    watch = MemoryWatch(Workers(None))
    assert watch.next_s == 0.0
    assert list(watch.look(70.0)) == []
    assert watch.next_s == 70.0 + _EVERY_S


def test_a_slow_look_is_followed_by_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    times = iter([3.0, 3.5])
    monkeypatch.setattr("feedline.delivery.driver.memory_watch.time.perf_counter", lambda: next(times))
    assert list(bench.watch.look(70.0)) == []
    assert bench.watch.next_s == pytest.approx(70.0 + 0.5 / memory_watch._MOST_SHARE)


def test_memory_shared_with_the_training_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, most_bytes=200 * MIB)
    monkeypatch.setattr(memory_watch, "seen_bytes", lambda pid: 10**12)
    assert bench.look(20) == []
    bench.memory[11] = 201 * MIB
    assert bench.look() == [0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60))
def test_however_much_a_worker_grows_it_is_reported_only_a_few_times(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patches:
        bench = Bench(patches, 11)
        reported: list[Growth] = []
        for size in sorted(sizes):
            bench.memory[11] = size
            reported += [found for found in bench.look() if isinstance(found, Growth)]
        grown = [growth.now_bytes - growth.settled_bytes for growth in reported]
        assert all(growth > _NOTABLE_BYTES for growth in grown)
        assert all(later > 2 * before for before, later in itertools.pairwise(grown))
        assert len(reported) <= 12


def test_a_growth_message_names_the_worker_the_amount_and_the_option() -> None:
    text = str(Growth(3, 812, 200 * MIB, 1000 * MIB))
    for part in ("Worker 3 (pid 812)", "grown by 800 MiB", "from 200 to 1000 MiB", "max_memory_per_worker="):
        assert part in text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from Linux's /proc")
@pytest.mark.parametrize("measure", [own_bytes, seen_bytes])
def test_bytes_of_a_process_include_its_private_memory(measure: Callable[[int], int | None]) -> None:
    before = measure(os.getpid())
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * len(block))
        after = measure(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > 48 * MIB


@pytest.mark.parametrize("measure", [own_bytes, seen_bytes])
def test_bytes_of_a_process_that_is_gone_are_none(measure: Callable[[int], int | None]) -> None:
    assert measure(2**22 + 1) is None  # beyond Linux's largest pid
