"""Clocks of threads and tasks, in simulated time; threads are counted, not timed."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

import pytest

from feedline.system import timing as module
from feedline.system.timing import Clock, TaskCpu, on_threads, queued_ns, usual_s

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

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return f"{self.cpu} {self.queued} 7\n".encode()

    def queued_ns(self) -> int:
        self.looks += 1
        return self.queued


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(module, "time", machine)
    monkeypatch.setattr(module, "queued_ns", machine.queued_ns)
    monkeypatch.setattr(os, "pread", machine.pread)
    return machine


def test_the_time_of_a_thread_excludes_waiting_for_a_core(machine: Machine) -> None:
    clock = Clock()
    before = clock.now()
    machine.compute(3 * MS)
    machine.sleep(20 * MS)
    machine.queue(500 * MS)
    assert clock.since(before) == pytest.approx((0.023, 0.003), abs=1e-6)
    clock.close()
    clock.close()


def test_without_system_figures_wall_clock_time_is_used(machine: Machine) -> None:
    clock = Clock()
    clock.close()
    before = clock.now()
    machine.sleep(10 * MS)
    machine.queue(5 * MS)
    assert clock.since(before)[0] == pytest.approx(0.015, abs=1e-6)


def test_usual_s_is_the_median_of_some_calls(machine: Machine) -> None:
    clock = Clock()
    durations = itertools.chain([30 * MS], itertools.repeat(10 * MS))
    assert usual_s(lambda: machine.sleep(next(durations)), clock) == pytest.approx(0.01, abs=1e-6)
    calls: list[int] = []

    def call() -> None:
        calls.append(0)
        machine.sleep(20 * MS)

    assert usual_s(call, clock, most_s=0.01) == pytest.approx(0.02, abs=1e-6)
    assert len(calls) == 1, "it is too slow for another call"
    clock.close()


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


def test_the_run_queue_is_read_only_for_tasks_that_do_not_just_compute(machine: Machine) -> None:
    cpu = TaskCpu()
    cpu.begin()
    machine.compute(MS)
    cpu.spent(MS)
    before = machine.looks
    for _ in range(100):
        cpu.begin()
        machine.compute(MS)
        assert cpu.spent(MS) == (MS, 0)
    assert machine.looks == before
    cpu.begin()
    machine.compute(MS)
    machine.queue(2 * MS)
    assert cpu.spent(3 * MS) == (MS, 2 * MS), "including the first task"


def test_real_system_figures_are_read() -> None:
    first = queued_ns()
    assert 0 <= first <= queued_ns()
    cpu = TaskCpu(of_process=True)
    cpu.begin()
    computed, queued = cpu.spent(10**18)
    assert computed >= 0
    assert queued >= 0


# -- on several threads ------------------------------------------------------------------------------------------------


def test_each_call_has_its_own_thread() -> None:
    together = threading.Barrier(3)
    names: list[str] = []

    def call() -> None:
        together.wait(60)
        names.append(threading.current_thread().name)

    found = on_threads([call] * 3, until_s=0.0)
    assert found.failure is None
    assert found.rate > 0
    assert len(set(names)) == len(names) == 3, "each once, since the time was up"


def test_a_failure_on_a_thread_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("not here")

    found = on_threads([fail, lambda: None], time.monotonic() + 60)
    assert found.rate == 0
    assert str(found.failure) == "not here"


def test_a_thread_that_does_not_return_counts_as_no_success() -> None:
    over = threading.Event()
    found = on_threads([over.wait, lambda: None], until_s=0.0, give_up_s=0.0)
    over.set()
    assert found.rate == 0


def gains(call: Callable[[], object]) -> float:
    """Return how many times as many calls two threads make as one does."""
    one = on_threads([call], time.monotonic() + 0.2)
    return on_threads([call, call], time.monotonic() + 0.2).rate / one.rate


@pytest.mark.real_time
def test_two_threads_gain_if_they_wait_and_not_if_they_hold_the_gil() -> None:
    assert any(gains(lambda: time.sleep(0.002)) > 1.5 for _ in range(10))
    assert any(gains(lambda: sum(range(20_000))) <= 1.5 for _ in range(10))
