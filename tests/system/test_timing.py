"""Clocks of threads and tasks, in simulated time; threads are counted, not timed."""

from __future__ import annotations

import time

import pytest

from feedline.system import timing as module
from feedline.system.timing import Clock, TaskCpu, on_threads

MS = 1_000_000


class Machine:
    """The clocks of a thread that computes, sleeps, or waits for a core that another program uses."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.process_cpu = self.queued = 10**9
        self.looks = 0

    def compute(self, ns: int, *, threads: int = 1) -> None:
        self.wall, self.cpu, self.process_cpu = self.wall + ns, self.cpu + ns, self.process_cpu + threads * ns

    def sleep(self, ns: int) -> None:
        self.wall += ns

    def queue(self, ns: int) -> None:
        self.wall, self.queued = self.wall + ns, self.queued + ns

    # The functions of `time` and of the system that the module calls.

    def perf_counter_ns(self) -> int:
        return self.wall

    def thread_time_ns(self) -> int:
        return self.cpu

    def process_time_ns(self) -> int:
        return self.process_cpu

    def queued_ns(self) -> int:
        self.looks += 1
        return self.queued


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(module, "time", machine)
    monkeypatch.setattr(module, "queued_ns", machine.queued_ns)
    return machine


def test_the_time_of_a_thread_excludes_waiting_for_a_core(machine: Machine) -> None:
    clock = Clock()
    before = clock.now()
    machine.compute(3 * MS)
    machine.sleep(20 * MS)
    machine.queue(500 * MS)
    assert clock.since(before) == pytest.approx((0.023, 0.003), abs=1e-6)


@pytest.mark.parametrize("of_process", [False, True])
def test_the_cpu_time_of_a_task(machine: Machine, of_process: bool) -> None:
    cpu = TaskCpu(of_process=of_process)
    cpu.begin()
    machine.compute(4 * MS, threads=2)
    assert cpu.spent(4 * MS) == (8 * MS if of_process else 4 * MS, 0)
    cpu.begin()
    machine.sleep(9 * MS)
    assert cpu.spent(9 * MS) == (0, 0), "each task is measured separately"


def test_waiting_for_a_core_does_not_count_as_sleeping(machine: Machine) -> None:
    cpu = TaskCpu()
    for _ in range(3):
        machine.queue(50 * MS)  # before the task starts
        cpu.begin()
        machine.compute(2 * MS)
        machine.queue(7 * MS)
        machine.sleep(3 * MS)
        assert cpu.spent(12 * MS) == (2 * MS, 7 * MS)


def test_a_failure_on_a_thread_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("not here")

    found = on_threads([fail, lambda: None], time.monotonic() + 60)
    assert found.rate == 0
    assert str(found.failure) == "not here"
