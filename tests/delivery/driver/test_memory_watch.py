"""The watch reports workers that grow or use too much memory; clock and engine are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from feedline.delivery.driver import memory_watch
from feedline.delivery.driver.memory_watch import _BASE_AFTER, _NOTABLE_BYTES, MemoryWatch

MIB = 1 << 20


class Bench:
    """A watch, and how much memory each process appears to have. Every worker has answered once."""

    def __init__(self, patches: pytest.MonkeyPatch, *pids: int, most_bytes: int | None = None, used: int = 100) -> None:
        self.pids = list(pids)
        self.memory = dict.fromkeys(pids, used * MIB)
        engine: Any = SimpleNamespace(pid=lambda worker: self.pids[worker])
        self.watch = MemoryWatch(engine, most_bytes)
        for name in ("seen_bytes", "own_bytes"):
            patches.setattr(memory_watch, name, self.memory.__getitem__)
        self.said = [self.watch.begin(worker) for worker in range(len(pids))]

    def look(self, times: int = 1) -> list[str | int]:
        return [found for _ in range(times) for found in self.watch.look(0.0)]


def test_a_worker_that_grows_is_reported_once_per_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, 12)
    assert bench.look(_BASE_AFTER) == []
    bench.memory[12] = 100 * MIB + _NOTABLE_BYTES
    assert bench.look() == []
    bench.memory[12] += MIB
    (warning,) = bench.look()
    assert "Worker 1 (pid 12) has grown by 513 MiB" in str(warning)
    assert bench.look(10) == []
    bench.memory[12] += _NOTABLE_BYTES
    assert bench.look() == []
    bench.memory[12] += 2 * MIB
    assert len(bench.look(10)) == 1


def test_a_replaced_worker_is_measured_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11)
    bench.look(_BASE_AFTER)
    bench.watch.forget(0)
    bench.pids[0] = 21
    bench.memory[21] = 10 * _NOTABLE_BYTES
    assert bench.look(20) == []
    assert bench.watch.begin(0) is None
    assert bench.look(20) == []
    bench.memory[21] = 12 * _NOTABLE_BYTES
    assert len(bench.look(20)) == 1


def test_workers_over_the_limit_are_reported_on_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 11, 12, 13, most_bytes=100 * MIB)
    assert bench.look() == []
    bench.memory[11] = bench.memory[13] = 100 * MIB + 1
    assert bench.look() == [0, 2]
    assert bench.look() == [0, 2]


def test_a_worker_that_starts_over_the_limit_is_kept_and_its_growth_counts_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, 11, most_bytes=1 * MIB, used=2048)
    assert "2048 MiB" in str(bench.said[0])
    assert "max_memory_per_worker allows 1." in str(bench.said[0])
    assert bench.look(20) == []
    bench.memory[11] += _NOTABLE_BYTES + 1
    assert "grown by 512 MiB" in str(bench.look()[0])


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
