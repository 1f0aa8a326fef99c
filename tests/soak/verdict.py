"""Whether a program was steady: pure functions of the counted figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # values of JSON

from tests.soak.cycle import WARM_UP
from tests.soak.trial import Result

_ENDS = 3
"""The number of cycles at each end whose counts are compared."""

_MOST_PAIRS = 400
"""The most points between which slopes are computed: a million pairs take seconds."""


@dataclass(frozen=True)
class Finding:
    """Something that was not steady."""

    configuration: str
    what: str


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of points (Theil-Sen), which outliers hardly move.

    Example:
        >>> slope([(0, 1), (1, 3), (2, 5), (3, 100)])
        2.0
    """
    points = points[:: max(1, len(points) // _MOST_PAIRS)]
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 > x1]
    return float(statistics.median(slopes)) if slopes else 0.0


# Any: values of JSON.
def growth_bytes(cycles: Sequence[dict[str, Any]]) -> int:
    """Return how much a program has grown from its warm-up to its end, by the slope of its memory."""
    measured = [(float(place), float(cycle["private_bytes"])) for place, cycle in enumerate(cycles)][WARM_UP:]
    return round(slope(measured) * (len(measured) - 1)) if len(measured) > 1 else 0


def findings(result: Result, tolerance_bytes: int) -> list[Finding]:
    """List what is wrong with a configuration."""
    texts = list(result.problems)
    for life in result.lives:
        texts += [f"life {life.number}: {text}" for text in _unsteady(life.cycles, tolerance_bytes)]
    return [Finding(result.name, text) for text in texts]


def _unsteady(cycles: Sequence[dict[str, Any]], tolerance_bytes: int) -> list[str]:
    found = []
    grown = growth_bytes(cycles)
    if grown > tolerance_bytes:
        count = len(cycles) - WARM_UP
        found.append(f"memory grew by {grown >> 20} MiB in {count} cycles (at most {tolerance_bytes >> 20})")
    measured = cycles[WARM_UP - 1 :]
    if len(measured) < 2 * _ENDS:
        return found
    for name in ("descriptors", "threads", "processes", "batch_bytes"):
        before, after = ([cycle[name] for cycle in part] for part in (measured[:_ENDS], measured[-_ENDS:]))
        if min(after) > max(before):
            found.append(f"{name} rose from {max(before):,} to {min(after):,}")
    left = dict.fromkeys(name for cycle in measured for name in cycle["leftovers"])
    if left:
        found.append(f"left behind after a cycle: {', '.join(list(left)[:5])}")
    return found
