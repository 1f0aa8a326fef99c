"""Memory that a worker has freed: when it is kept, and when it is returned to the system."""

from __future__ import annotations

from feedline.workers.heap import Glibc, Heap

MIB = 1 << 20


class SimulatedHeap(Glibc):
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
            if self.now_s >= self.heap.due_s:
                self.heap.worked()

    def rest(self, waits: int) -> None:
        for wait in range(waits):
            self.now_s += 0.2
            self.heap.rested(wait + 1)


# -- at work ---


def test_the_memory_of_a_spike_is_returned_soon() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(10, need=20 * MIB)
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


def test_memory_that_the_parent_had_freed_does_not_hide_a_spike() -> None:
    """A worker that fills it copies those pages, and its resident memory would not grow."""
    bench = Bench(SimulatedHeap(free=500 * MIB))
    assert bench.simulated.warm == 0
    bench.simulated.need(500 * MIB)
    bench.work(1.1, need=20 * MIB)
    assert bench.simulated.warm == 20 * MIB


# -- idle ---


def test_an_idle_worker_returns_much_free_memory() -> None:
    bench = Bench(SimulatedHeap())
    bench.work(0.5, need=800 * MIB)
    bench.rest(1)
    assert bench.simulated.warm == 0
    bench.rest(100)
    assert bench.simulated.trims == 1


def test_a_worker_that_waits_between_batches_keeps_the_memory_they_need() -> None:
    """With a slow training loop, short pauses must not make every batch fault its memory in again."""
    bench = Bench(SimulatedHeap())
    for _ in range(100):
        bench.work(0.05, need=800 * MIB)
        bench.rest(3)
    assert bench.simulated.trims == 2
    bench.rest(100)
    assert bench.simulated.warm == 0, "returned in a longer pause"
