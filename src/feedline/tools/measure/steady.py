"""The rate of a loader in steady state, and what it costs.

The clock of a measurement starts when `Span.margin` batches have been consumed and stops as many before the end of the
epoch, or when enough was counted. The window of prefetched batches is full at both ends, so nothing that was made
before the clock started is counted for free. An epoch too short for that is followed by more epochs, with the clock
stopped in between.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.tools.measure import load
from feedline.tools.measure.harness import Figures, LoaderLike, close, nothing

_byte_at = ctypes.c_ubyte.from_address


# Any: a batch is whatever a dataset makes of its samples.
def touch(batch: Any) -> None:
    """Read a byte of every page of the arrays in a batch, so that memory mapped but never read does not look free."""
    if hasattr(batch, "data_ptr"):  # a tensor; torch is not imported here
        size = batch.nbytes if batch.is_cpu and not batch.is_sparse and batch.is_contiguous() else 0
        if 0 < size <= mmap.PAGESIZE:
            # By address: half a microsecond. A tensor operation takes three to seven, a tenth of what a batch of the
            # tiny workload costs, and would be measured as if the loader had spent it.
            _byte_at(batch.data_ptr()).value  # noqa: B018
        elif size:
            memory: Any = (ctypes.c_ubyte * size).from_address(batch.data_ptr())  # Any: the stubs declare no buffer
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE].max()
    elif isinstance(batch, np.ndarray):
        if batch.dtype != object and batch.flags.c_contiguous and batch.nbytes:
            batch.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max()
    elif isinstance(batch, (str, bytes)):
        _ = batch[:: mmap.PAGESIZE]
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            touch(part)
    elif isinstance(batch, Mapping):
        touch(list(batch.values()))


@dataclass(frozen=True)
class Span:
    """How much of a loader one measurement counts."""

    seconds: float
    """Count at least this long."""
    batches: int = 1
    """Count at least this many batches."""
    warmup: int = 8
    """Batches left out at both ends of an epoch; more if the window of prefetched batches needs it."""

    is_ahead: bool = True
    """False if no batches are made ahead, as the consumer takes each at once: then as few as possible are left out."""

    def margin(self, worker_count: int, prefetch: int | None = None) -> int:
        """Return how many batches to leave out at each end: at least twice as many as workers may have made ahead."""
        if not self.is_ahead:
            return max(worker_count, 1)  # workers do not start at the same moment
        return max(self.warmup, 2 * worker_count * (prefetch or 2))


@dataclass(frozen=True)
class Steady:
    """A loader that is measured in steady state."""

    open: Callable[[], LoaderLike]
    """Construct the loader."""
    consume: Callable[[object], None]
    """Do what the training loop does with a batch."""
    batch_size: int
    span: Span
    length: int | None = None
    """Batches in an epoch, for a loader that does not know its length."""
    finish: Callable[[], None] = nothing
    """Wait for work that `consume` left running, on a GPU say, before the clock is read."""
    sums: Callable[[object], dict[str, float]] = lambda loader: {}
    """Read the totals that the loader keeps. Figures hold their increase between the first start and the last stop."""

    def measure(self) -> Figures:
        """Open the loader, count one span of it in steady state, close it."""
        began = time.perf_counter()
        loader = self.open()
        try:
            return self._count(loader, began)
        finally:
            close(loader)

    def peak_pss_mb(self, *, every_s: float = 0.05) -> float | None:
        """Run a quarter of a span untimed and return the highest summed PSS seen between two batches, in MB."""
        loader = self.open()
        least = max(1, self.span.batches // 4) + self._margin(loader)
        began = read_at = time.perf_counter()
        reading_s, readings = 0.0, list[int | None]()
        try:
            for count, batch in enumerate(loader, start=1):
                self.consume(batch)
                now = time.perf_counter()
                enough = now - began - reading_s >= self.span.seconds / 4 and count >= least
                if now - read_at >= every_s or enough:
                    readings.append(load.pss_bytes())
                    read_at = time.perf_counter()
                    reading_s += read_at - now
                if enough:
                    break
            self.finish()
        finally:
            close(loader)
        return max((found / 1e6 for found in readings if found), default=None)

    def _margin(self, loader: LoaderLike) -> int:
        return self.span.margin(loader.num_workers, loader.prefetch_factor)

    def _count(self, loader: LoaderLike, began: float) -> Figures:
        margin = self._margin(loader)
        length = len(loader) if self.length is None else self.length
        countable = length - 2 * margin - 1
        if countable < 1:
            raise ValueError(
                f"an epoch of {length} batches leaves nothing to count: {margin} are left out at each end. "
                f"Lower --warmup, use fewer workers, or make the dataset longer."
            )
        meter, waits, before = Meter(), list[int](), dict[str, float]()
        clock, consume, span = time.perf_counter_ns, self.consume, self.span
        first_s = 0.0
        enough = False
        while not enough:
            iterator = iter(loader)
            consume(next(iterator))
            if not waits:
                first_s = time.perf_counter() - began
                meter.find_processes()
            for _ in range(margin):
                consume(next(iterator))
            before = before or self.sums(loader)
            meter.start()
            deadline = clock() + int((span.seconds - meter.elapsed_s) * 1e9)
            for _ in range(countable):
                asked = clock()
                batch = next(iterator)
                got = clock()
                waits.append(got - asked)
                consume(batch)
                if got >= deadline and len(waits) >= span.batches:
                    enough = True
                    break
            self.finish()
            meter.stop()
            sums = self.sums(loader)
            if not enough:
                for batch in iterator:
                    consume(batch)
            del iterator
        waits.sort()
        batches, samples = len(waits), len(waits) * self.batch_size
        return {
            "seconds": meter.elapsed_s,
            "batches": float(batches),
            "first_batch": float(margin + 1),
            "first_batch_ms": first_s * 1e3,
            "batches_per_s": batches / meter.elapsed_s,
            "samples_per_s": samples / meter.elapsed_s,
            "cpu_s_per_1000": meter.cpu_s / samples * 1000,
            "consumer_cpu_us": meter.consumer_cpu_s / batches * 1e6,
            "parent_cpu_us": meter.parent_cpu_s / batches * 1e6,
            "wait_p50_us": waits[batches // 2] / 1e3,
            "wait_p99_us": waits[min(batches - 1, int(batches * 0.99))] / 1e3,
            "other_cores": meter.other_cores(),
            **{name: value - before[name] for name, value in sums.items()},
        }


class Meter:
    """A stopwatch that also reads the CPU time of this program's processes; may be started many times."""

    def __init__(self) -> None:
        self.elapsed_s = self.cpu_s = self.parent_cpu_s = self.consumer_cpu_s = 0.0
        self._pids: list[int] = []
        self._readings: list[load.Reading] = []

    def find_processes(self) -> None:
        """List the processes to watch; slow, so do it well before `start`."""
        self._pids = load.process_tree()

    def start(self) -> None:
        """Start the clock."""
        self._readings.append(load.Reading.now(self._pids))
        self._before = time.process_time(), time.thread_time(), time.perf_counter()

    def stop(self) -> None:
        """Stop the clock and update the totals."""
        parent_s, consumer_s, began_s = self._before
        now_s = time.perf_counter()
        self.elapsed_s += now_s - began_s
        self.consumer_cpu_s += time.thread_time() - consumer_s
        self.parent_cpu_s += time.process_time() - parent_s
        self._readings.append(load.Reading.now(self._pids))
        self.cpu_s += load.cpu_used(self._readings[-2].own, self._readings[-1].own)

    def other_cores(self) -> float | None:
        """Return the load of other programs between the first start and the last stop."""
        return self._readings[0].other_cores(self._readings[-1])
