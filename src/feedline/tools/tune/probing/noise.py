"""How much the machine disturbs what is timed: a loop that always does the same, and the cores' time that was stolen.

The loop runs between samples, so that it meets the same bursts as they do. It is timed as they are, without the time in
which it had no core: what is left of its spread is caches, clock rates, and cores that a hypervisor takes away.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from feedline.system.process import scheduled_s
from feedline.system.timing import Clock
from feedline.tools.tune.measured import Noise

_EVERY_S = 0.01
"""Between two runs of the loop."""
_LEAST = 15
"""Runs, however short the probe is."""
_IN_MEDIAN = 5
"""Runs of which the median counts, as in `usual_s`."""
_STEPS = 5000
"""Of the loop, which then takes some 100 us."""
_STEAL = 8
"""The place of stolen time in the first line of /proc/stat."""


class Calibration:
    """Runs the loop now and then, and says how much its time differed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: list[float] = []
        self._next_s = 0.0
        self._began_s = time.monotonic()
        self._queued_s = scheduled_s(os.getpid())[1]
        self._cores = _cores_time()

    def tick(self) -> None:
        """Run the loop, if that was not done just before."""
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
        """Return what was seen so far."""
        while len(self._times) < _LEAST:
            self._loop()
        elapsed_s = max(time.monotonic() - self._began_s, 1e-6)
        queued_s = scheduled_s(os.getpid())[1] - self._queued_s
        used = [now - before for now, before in zip(_cores_time(), self._cores, strict=False)]
        stolen = used[_STEAL - 1] / sum(used) if len(used) >= _STEAL and sum(used) > 0 else 0.0
        return Noise(spread_of(self._times), max(0.0, stolen), min(1.0, queued_s / elapsed_s))


def spread_of(times: list[float]) -> float:
    """Return by how much medians of some times each differ, as a share of the median of all.

    Medians, as figures are medians, too: what a single burst disturbs is left out of both.

    Example:
        >>> spread_of([1.0, 9.0, 1.0, 1.0, 1.0] * 4), spread_of([1.0] * 20 + [1.5] * 20) > 0.3
        (0.0, True)
    """
    count = max(1, len(times) // _IN_MEDIAN)
    medians = [float(np.median(part)) for part in np.array_split(times, count)]
    least, most = np.quantile(medians, (0.1, 0.9)).tolist()
    return float((most - least) / np.median(times))


def _cores_time() -> list[int]:
    """Return the time of all cores so far, by what it was spent on; empty where the system does not say."""
    try:
        return list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    except (OSError, ValueError):
        return []
