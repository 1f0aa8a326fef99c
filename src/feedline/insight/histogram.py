"""Counts of durations on a logarithmic scale: any number of them in a few kilobytes, quantiles within 9 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PER_OCTAVE = 8
"""Bins between a duration and its double: a quantile is right within a factor of 2 ** (1 / 8)."""
_BINS = 48 * PER_OCTAVE
"""Up to 2 ** 48 ns, about three days."""


@dataclass(frozen=True)
class Spread:
    """How durations are distributed, in seconds.

    Example:
        >>> Spread(count=2, mean=1.5, p50=1.0, p90=2.0, p99=2.0).p90
        2.0
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class Histogram:
    """Counts of durations in nanoseconds.

    Example:
        >>> histogram = Histogram()
        >>> histogram.add(np.array([1000, 1000, 4000]))
        >>> histogram.count, histogram.mean, round(histogram.quantile(0.5), -2)
        (3, 2000.0, 1000.0)
    """

    __slots__ = ("_counts", "_least", "_most", "count", "total")

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._least = math.inf
        self._most = 0.0
        self.count = 0
        self.total = 0
        """Sum of the durations."""

    def add(self, durations: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> None:
        """Count durations, each as often as its weight; negative ones count as 0."""
        if not len(durations):
            return
        durations = np.maximum(durations, 0)
        weights = np.ones_like(durations) if weights is None else weights
        places = (np.log2(np.maximum(durations, 1)) * PER_OCTAVE).astype(np.int64)
        np.add.at(self._counts, np.minimum(places, _BINS - 1), weights)
        self.count += int(weights.sum())
        self.total += int((durations * weights).sum())
        self._least = min(self._least, float(durations.min()))
        self._most = max(self._most, float(durations.max()))

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self._counts += other._counts
        self.count += other.count
        self.total += other.total
        self._least = min(self._least, other._least)
        self._most = max(self._most, other._most)

    @property
    def mean(self) -> float:
        """The exact mean; 0 if the histogram is empty."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the `share` quantile of the durations, accurate within a bin; 0 if there are none."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(share * self.count))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return float(min(max(2.0 ** ((place + 0.5) / PER_OCTAVE), self._least), self._most))

    def spread(self) -> Spread:
        """Return the distribution, in seconds."""
        p50, p90, p99 = (self.quantile(share) / 1e9 for share in (0.5, 0.9, 0.99))
        return Spread(self.count, self.mean / 1e9, p50, p90, p99)
