"""Measures how much the machine disturbs timings: the spread of a constant loop, and stolen CPU time.

The loop runs between samples, so it meets the same bursts of load. Its time, like theirs, excludes time without a core.
What remains of its spread comes from caches, clock rates, and cores taken away by a hypervisor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feedline.system.process import scheduled_s
from feedline.system.timing import Clock
from feedline.tools.measure.measured import Noise

_EVERY_S = 0.01
"""Time between two runs of the loop."""
_LEAST = 15
"""Minimum number of runs, however short the probe is."""
_IN_MEDIAN = 5
"""Runs per median."""
_STEPS = 5000
"""Iterations of the loop, about 100 us in total."""
_STEAL = 8
"""The position of stolen time in the first line of /proc/stat."""


class Calibration:
    """Runs the loop now and then, and reports how much its time varied."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: list[float] = []
        self._next_s = 0.0
        self._began_s = time.monotonic()
        self._queued_s = scheduled_s(os.getpid())[1]
        self._cores = _cores_time()

    def tick(self) -> None:
        """Run the loop, unless it ran just before."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self._loop()

    def _loop(self) -> None:
        before = self._clock.now()
        total = 0
        for number in range(_STEPS):
            total += number
        self._times.append(self._clock.since(before)[0])

    def noise(self) -> Noise:
        """Return the noise so far."""
        while len(self._times) < _LEAST:
            self._loop()
        elapsed_s = max(time.monotonic() - self._began_s, 1e-6)
        queued_s = scheduled_s(os.getpid())[1] - self._queued_s
        used = [now - before for now, before in zip(_cores_time(), self._cores, strict=False)]
        stolen = used[_STEAL - 1] / sum(used) if len(used) >= _STEAL and sum(used) > 0 else 0.0
        return Noise(spread_of(self._times), max(0.0, stolen), min(1.0, queued_s / elapsed_s))


def spread_of(times: list[float]) -> float:
    """Return the spread of medians of consecutive times, relative to the median of all.

    Figures are medians, too, so a single burst affects neither.

    Example:
        >>> spread_of([1.0, 9.0, 1.0, 1.0, 1.0] * 4), spread_of([1.0] * 20 + [1.5] * 20) > 0.3
        (0.0, True)
    """
    count = max(1, len(times) // _IN_MEDIAN)
    medians = [float(np.median(part)) for part in np.array_split(times, count)]
    least, most = np.quantile(medians, (0.1, 0.9)).tolist()
    return float((most - least) / np.median(times))


def _cores_time() -> list[int]:
    """Return the time of all cores so far, by category; empty where the system does not report it."""
    try:
        return list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    except (OSError, ValueError):
        return []


# object: the result of the function is dropped.
def usual_s(function: Callable[[], object], clock: Clock, *, most_s: float = 0.2) -> float:
    """Return the median time of a few calls; a slow function may be called only once."""
    times: list[float] = []
    while len(times) < _IN_MEDIAN and sum(times) < most_s:
        before = clock.now()
        function()
        times.append(clock.since(before)[0])
    return float(np.median(times))
