"""Memory that a worker has freed: when it is kept, and when it is returned to the system."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.system.process import own_bytes
from feedline.workers import heap
from feedline.workers.heap import Glibc, Heap, heap_of_this_process
from tests.faults.programs import running_afresh

pytestmark = pytest.mark.sample(7)

MIB = 1 << 20


class SimulatedHeap:
    """A simulated heap: bytes in use, free bytes, and free bytes that are backed by memory (warm)."""

    def __init__(self, *, used: int = 100 * MIB, free: int = 0) -> None:
        self.used = used
        self.free = self.warm = free
        self.trims = 0
        self.walks = 0

    def need(self, size: int) -> None:
        """Allocate `size` bytes and free them."""
        self.free = max(self.free, size)
        self.warm = max(self.warm, size)

    def resident_bytes(self) -> int:
        return self.used + self.warm

    def free_bytes(self) -> int:
        self.walks += 1
        return self.free

    def trim(self) -> None:
        self.trims += 1
        self.warm = 0


class Bench:
    """A heap, a clock, and a worker that does a task every `every_s` seconds."""

    def __init__(self, simulated: SimulatedHeap) -> None:
        self.simulated = simulated
        self.now_s = 0.0
        self.heap = Heap(simulated, lambda: self.now_s)

    def work(self, seconds: float, *, need: int, every_s: float = 0.05) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.simulated.need(need)
            self.heap.worked()

    def rest(self, waits: int) -> None:
        for _ in range(waits):
            self.now_s += 0.2
            self.heap.rested()


# -- at work ---


@pytest.mark.parametrize("every_s", [0.001, 0.05, 2.0])
def test_work_that_needs_little_memory_never_trims(every_s: float) -> None:
    bench = Bench(SimulatedHeap())
    bench.work(100, need=30 * MIB, every_s=every_s)
    assert (bench.simulated.trims, bench.simulated.walks) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("every_s", [0.001, 0.05, 2.0])
def test_work_that_needs_much_memory_trims_once(every_s: float) -> None:
    bench = Bench(SimulatedHeap())
    bench.work(1000, need=800 * MIB, every_s=every_s)
    assert bench.simulated.trims == 1
    assert bench.simulated.walks <= 2


def test_the_memory_of_a_spike_is_returned_soon() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(10, need=20 * MIB)
    bench.simulated.need(1500 * MIB)
    bench.work(1.1, need=20 * MIB)
    assert bench.simulated.warm == 20 * MIB


def test_the_memory_of_a_spike_at_the_very_start_is_returned_too() -> None:
    bench = Bench(SimulatedHeap())
    bench.simulated.need(1500 * MIB)
    bench.work(1.1, need=20 * MIB)
    assert bench.simulated.warm == 20 * MIB


def test_the_memory_that_batches_need_is_kept_after_a_spike() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(10, need=200 * MIB)
    bench.simulated.need(1500 * MIB)
    bench.work(10, need=200 * MIB)
    assert bench.simulated.warm == 200 * MIB
    assert bench.simulated.trims == 2


def test_growing_needs_trim_rarely() -> None:
    bench = Bench(SimulatedHeap())
    for size in range(10, 1000):
        bench.work(1, need=size * MIB)
    assert bench.simulated.trims <= 6


def test_memory_in_use_is_not_taken_for_free() -> None:
    """A cache of the dataset grows and is then dropped."""
    bench = Bench(SimulatedHeap())
    for _ in range(100):
        bench.simulated.used += 50 * MIB
        bench.work(1, need=10 * MIB)
    assert bench.simulated.trims == 0
    bench.simulated.used -= 5000 * MIB
    bench.simulated.need(5000 * MIB)
    bench.work(2, need=10 * MIB)
    assert bench.simulated.warm == 10 * MIB


# -- idle ---


def test_an_idle_worker_returns_much_free_memory() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(0.5, need=800 * MIB)
    bench.rest(1)
    assert bench.simulated.warm == 0
    bench.rest(100)
    assert bench.simulated.trims == 1


def test_an_idle_worker_keeps_a_little_free_memory() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(0.5, need=30 * MIB)
    bench.rest(100)
    assert bench.simulated.warm == 30 * MIB
    assert bench.simulated.walks == 1


def test_a_worker_that_waits_between_batches_keeps_the_memory_they_need() -> None:
    """With a slow training loop, short pauses must not make every batch fault its memory in again."""
    bench = Bench(SimulatedHeap())
    for _ in range(100):
        bench.work(0.05, need=800 * MIB)
        bench.rest(3)
    assert bench.simulated.trims == 2
    bench.rest(100)
    assert bench.simulated.warm == 0, "returned in a longer pause"


# -- the beginning ---


def test_memory_that_was_free_before_the_first_task_is_returned() -> None:
    simulated = SimulatedHeap(free=900 * MIB)
    bench = Bench(simulated)
    assert simulated.warm == 0
    bench.work(1.1, need=20 * MIB)
    assert simulated.trims == 1


def test_without_glibc_the_heap_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def __init__(self, _: object) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Other)
    heap_of_this_process().rested()
    heap.keep_heap_warm()
    silent = Heap(None)
    for _ in range(100):
        silent.worked()
        silent.rested()


# -- the heap itself ---


def glibc() -> Glibc:
    try:
        return Glibc()
    except AttributeError:
        pytest.skip("needs glibc")


def blocks(size: int) -> list[Any]:
    """Allocate blocks small enough that glibc keeps them in its heap."""
    return [np.ones(4_000_000, np.uint8) for _ in range(size // 4_000_000)]


@pytest.mark.parametrize("is_old", [False, True])
def test_free_and_resident_bytes_are_read_from_glibc(is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    glibc()
    if is_old:
        library = ctypes.CDLL(None)

        class Old:
            malloc_trim = library.malloc_trim
            mallinfo = library.mallinfo

        monkeypatch.setattr(ctypes, "CDLL", lambda _: Old)
    system = Glibc()
    before, resident = system.free_bytes(), system.resident_bytes()
    taken = blocks(400_000_000)
    assert system.resident_bytes() - resident > 300_000_000
    assert system.free_bytes() - before < 100_000_000
    del taken
    system.trim()
    assert system.resident_bytes() - resident < 100_000_000


# -- workers ---

ALLOWED = 48_000_000
"""How much a worker may have grown after briefly needing 400 MB. With torch's loader it is about 10 MB."""


class Spiky:
    """Sample 8 briefly needs 400 MB. Every sample holds the worker's pid and its private memory."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        if index == 8:
            blocks(400_000_000)
        return np.array([os.getpid(), own_bytes(os.getpid()) or 0])


@contextmanager
def past_the_spike(engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Iterator[Any], int, int]]:
    """Yield the batches after the spike, the worker's pid, and its private memory before the spike."""
    glibc()
    if engine == "portable":
        monkeypatch.setattr("feedline.workers.abilities.can_share_arenas", lambda: False)
    method = "fork" if engine == "portable" else engine
    loader = Loader(Spiky(), 1, workers=1, prefetch=1, engine="process", start_method=method)
    batches = iter(loader)
    pid, before = next(batches)[0].tolist()
    for _ in range(8):
        next(batches)
    yield batches, pid, before
    loader.close()


def falls_to(most: int, own: Callable[[], int]) -> bool:
    deadline_s = time.monotonic() + 30
    while own() > most:
        if time.monotonic() > deadline_s:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fork", "portable", "forkserver"])
def test_a_busy_worker_returns_the_memory_of_a_spike(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with past_the_spike(engine, monkeypatch) as (batches, _, before):
        assert falls_to(before + ALLOWED, lambda: int(next(batches)[0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fork", "portable", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_waiting_worker_returns_the_memory_of_a_spike(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_LOOK_S", 1e9)  # so that it does not do so while it works
    with past_the_spike(engine, monkeypatch) as (_, pid, before):
        assert falls_to(before + ALLOWED, lambda: own_bytes(pid) or 0)


FREED = """
from feedline.workers.heap import keep_heap_warm
from feedline.system.process import own_bytes
from tests.workers.test_heap import blocks

class Spiky(Numbers):
    def __getitem__(self, index):
        if index == 8:
            blocks(400_000_000)
        return np.array([own_bytes(os.getpid())])

keep_heap_warm()  # as a program may do that has the same worries
blocks(500_000_000)
say("freed")
loader = Loader(Spiky(10**6), 1, workers=1, prefetch=1, start_method="fork")
batches = iter(loader)
before = int(next(batches)[0, 0])
for _ in range(8):
    next(batches)
while int(next(batches)[0, 0]) > before + 48_000_000:
    continue
say("given back")
"""


@pytest.mark.slow
def test_memory_freed_before_the_fork_does_not_hide_a_spike() -> None:
    """A worker that fills memory its parent had freed copies those pages, and its resident memory does not grow."""
    glibc()
    with running_afresh(FREED) as program:
        assert program.line() == "freed"
        assert program.line() == "given back"
