"""The clock of a thread, in simulated time; threads are counted, not timed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from feedline.system import timing as module
from feedline.system.timing import Clock, on_threads


def test_the_time_of_a_thread_excludes_waiting_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = cpu = queued = 10**9
    times = SimpleNamespace(perf_counter_ns=lambda: wall, thread_time_ns=lambda: cpu)
    monkeypatch.setattr(module, "time", times)
    monkeypatch.setattr(module, "queued_ns", lambda: queued)
    clock = Clock()
    before = clock.now()
    wall += 523_000_000  # 3 ms of computing, 20 ms of sleep, 500 ms without a core
    cpu += 3_000_000
    queued += 500_000_000
    assert clock.since(before) == pytest.approx((0.023, 0.003), abs=1e-6)


def test_a_failure_on_a_thread_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("not here")

    found = on_threads([fail, lambda: None], time.monotonic() + 60)
    assert found.rate == 0
    assert str(found.failure) == "not here"
