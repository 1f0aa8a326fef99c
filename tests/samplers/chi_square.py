"""Pearson's chi-square test for counts from fixed seeds, so that it is not flaky."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_DEVIATIONS = 4.75
"""If the hypothesis is true, one in a million counts deviates further."""


def deviation(counts: Any, expected: Any = None) -> float:
    """Return by how many standard deviations the counts miss the expected ones (by default: all equal).

    Wilson and Hilferty: the cube root of chi-square is nearly normal.
    """
    observed = np.asarray(counts, dtype=np.float64).ravel()
    wanted = np.broadcast_to(observed.mean() if expected is None else np.asarray(expected).ravel(), observed.shape)
    assert math.isclose(wanted.sum(), observed.sum()), "the expected counts must sum to the number of draws"
    freedom = len(observed) - 1
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    return float((np.cbrt(chi_square / freedom) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))


def assert_fits(counts: Any, expected: Any = None) -> None:
    assert deviation(counts, expected) < _DEVIATIONS
