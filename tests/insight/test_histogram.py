"""Counts of durations on a logarithmic scale."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.insight.histogram import PER_OCTAVE, Histogram

DURATIONS = st.lists(st.integers(1, 10**14), min_size=1, max_size=60)


def counted(durations: list[int], weight: int = 1) -> Histogram:
    histogram = Histogram()
    histogram.add(np.array(durations, np.int64), np.full(len(durations), weight))
    return histogram


@settings(deadline=None)  # other tests may use the cores
@given(DURATIONS, st.floats(0.0, 1.0))
def test_quantiles_equal_numpys_within_a_bin(durations: list[int], share: float) -> None:
    exact = float(np.quantile(durations, share, method="inverted_cdf"))
    found = counted(durations).quantile(share)
    assert exact / 2 ** (1 / PER_OCTAVE) <= found * (1 + 1e-9)
    assert found <= exact * 2 ** (1 / PER_OCTAVE) * (1 + 1e-9)


@settings(deadline=None)  # other tests may use the cores
@given(DURATIONS, DURATIONS)
def test_merging_equals_a_histogram_of_both(first: list[int], second: list[int]) -> None:
    merged = counted(first)
    merged.merge(counted(second))
    assert merged.spread() == counted(first + second).spread()
    assert merged.total == sum(first) + sum(second)


@settings(deadline=None)  # other tests may use the cores
@given(DURATIONS, st.integers(1, 9))
def test_a_weight_counts_a_duration_several_times(durations: list[int], weight: int) -> None:
    assert counted(durations, weight).spread() == counted(durations * weight).spread()
