"""The clock of a worker's tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from feedline.workers import task_clock
from feedline.workers.task_clock import TaskCpu


@pytest.mark.parametrize("of_process", [False, True])
def test_waiting_for_a_core_counts_neither_as_computing_nor_as_sleeping(
    of_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = queued = 10**9
    times = SimpleNamespace(thread_time_ns=lambda: cpu, process_time_ns=lambda: 2 * cpu)
    monkeypatch.setattr(task_clock, "time", times)
    monkeypatch.setattr(task_clock, "queued_ns", lambda: queued)
    clock = TaskCpu(of_process=of_process)
    for _ in range(3):
        queued += 50_000_000  # before the task starts
        clock.begin()
        cpu += 2_000_000
        queued += 7_000_000
        computed = 4_000_000 if of_process else 2_000_000
        assert clock.spent(computed + 10_000_000) == (computed, 7_000_000), "the other 3 ms it slept"
    clock.begin()
    cpu += 2_000_000
    assert clock.spent(computed) == (computed, 0)
