"""Machine figures during a recording: CPU, memory, disk, GPU.

They come from Linux's `/proc`, and for NVIDIA GPUs from pynvml if it is installed. A figure that is not available is
None.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable
from types import ModuleType

from feedline.system.failures import words
from feedline.system.limits import physical_bytes
from feedline.system.process import seen_bytes

COLUMNS = ("at", "cpu", "memory", "worker_memory", "gpu", "gpu_memory", "disk")
"""Nanoseconds since the recording began; CPU load as a share of all cores; memory in use; private memory of the
workers, without the arena and mapped files; GPU load as a share; GPU memory in use; bytes read from disks so far. Sizes
are bytes."""

_EVERY_S = 0.5
_MOST = 4096
"""The most readings to keep: 34 minutes of them. At this number, every other reading is dropped and the interval
doubles, so that the remaining readings are evenly spaced."""


class MachineFigures:
    """Reads the machine's load twice a second, later less often, in a thread of its own, from `open` to `close`.

    Args:
        pids: returns the process ids of the workers.
        every_s: the interval between readings.
    """

    def __init__(self, pids: Callable[[], list[int]], every_s: float = _EVERY_S) -> None:
        self._pids = pids
        self._every_s = every_s
        self.columns: dict[str, list[float | None]] = {name: [] for name in COLUMNS}
        self.trouble: list[str] = []
        """The error that ended the readings, if there was one."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._gpu = _Gpu()
        self._last: tuple[float, float] | None = None
        self._begun = self._pid = 0

    def open(self) -> None:
        """Start reading."""
        self._pid = os.getpid()
        self._begun = time.monotonic_ns()
        self._try_read()
        self._thread = threading.Thread(target=self._work, name="feedline-recording", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take one last reading and stop. May be called twice.

        Does nothing in a forked child process, where the GPU library would crash.
        """
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:
            return
        self._ending.set()
        thread.join()
        self._try_read()
        self._gpu.close()

    def since(self, origin: int) -> dict[str, list[float | None]]:
        """Return the readings from `origin` on and the last one before it, with times relative to `origin`."""
        # The thread may be taking a reading: it appends to one column after another, and may replace them all.
        columns = self.columns
        count = min(map(len, columns.values()))
        columns = {name: column[:count] for name, column in columns.items()}
        shift = origin - self._begun
        moments = [0.0 if at is None else at for at in columns["at"]]
        first = max(sum(at < shift for at in moments) - 1, 0)
        columns = {name: column[first:] for name, column in columns.items()}
        return columns | {"at": [max(at - shift, 0) for at in moments[first:]]}

    def _work(self) -> None:
        while not (self.trouble or self._ending.wait(self._every_s)):
            self._try_read()

    def _try_read(self) -> None:
        try:
            if not self.trouble:
                self.read()
        except Exception as exc:  # missing figures must not end a training run
            self.trouble.append(f"CPU, memory, disk and GPU are no longer recorded: {words(exc)}.")

    def read(self) -> None:
        """Take a reading now."""
        memory, disk = self._memory_and_disk()
        share, gpu_bytes = self._gpu.read()
        workers = [seen_bytes(pid) for pid in self._pids()]
        figures = (
            time.monotonic_ns() - self._begun,
            self._cpu(),
            memory,
            sum(size for size in workers if size is not None) if workers else None,
            share,
            gpu_bytes,
            disk,
        )
        for name, figure in zip(COLUMNS, figures, strict=True):
            self.columns[name].append(figure)
        if len(self.columns["at"]) >= _MOST:
            self.columns = {name: column[::2] for name, column in self.columns.items()}
            self._every_s *= 2

    def _cpu(self) -> float | None:
        """Return the load since the last reading, as a share of all cores."""
        lines = _lines("/proc/stat")
        if not lines:
            return None
        numbers = [float(word) for word in lines[0].split()[1:9]]
        idle, total = numbers[3] + numbers[4], sum(numbers)
        last, self._last = self._last, (idle, total)
        if last is None or total <= last[1]:
            return None
        return float(min(1.0, max(0.0, 1 - (idle - last[0]) / (total - last[1]))))

    def _memory_and_disk(self) -> tuple[float | None, float | None]:
        """Return the memory in use, and the bytes read from disks since the machine started."""
        total, free = physical_bytes()
        used = None if total is None or free is None else float(total - free)
        fields = [line.split() for line in _lines("/proc/diskstats")]
        # Whole disks only: partitions and volumes built from disks would count twice.
        sectors = [int(line[5]) for line in fields if len(line) > 5 and os.path.isdir(f"/sys/block/{line[2]}/device")]
        return used, float(sum(sectors) * 512) if sectors else None


class _Gpu:
    """The NVIDIA GPUs of this machine, if there are any, read through pynvml."""

    def __init__(self) -> None:
        self._handles: list[object] = []
        self._nvml: ModuleType | None = None
        with contextlib.suppress(ImportError):
            self._nvml = importlib.import_module("pynvml")
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
                self._handles = [
                    self._nvml.nvmlDeviceGetHandleByIndex(number) for number in range(self._nvml.nvmlDeviceGetCount())
                ]
            except self._nvml.NVMLError:  # no driver
                self._nvml = None

    def read(self) -> tuple[float | None, float | None]:
        """Return the mean load of the GPUs, and the memory in use on all of them."""
        if self._nvml is None or not self._handles:
            return None, None
        try:
            shares = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
            used = [self._nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        except self._nvml.NVMLError:  # not supported, for example on a partition of a GPU
            return None, None
        return sum(shares) / len(shares), float(sum(used))

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
