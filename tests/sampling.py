"""Which cases of a test `make test` runs: the marker `sample`, and the number of Hypothesis examples.

`pytestmark = pytest.mark.sample(4)` in a file (or the marker on one test): `make test` runs one in four of the cases of
each test, and at least one; `make slow` runs the others. A hash of the names chooses them, so that every run takes the
same ones and different tests take different engines, formats and numbers of workers.
"""

import math
import zlib
from collections.abc import Iterable

import hypothesis
import pytest


def examples(count: int) -> int:
    """Scale a test's own number of examples as the profile scales the default, which is 100; at least to five."""
    return min(count, max(5, count * hypothesis.settings().max_examples // 100))


def sample(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that `make test` leaves out as slow."""
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None and item.get_closest_marker("slow") is None:
            parent = item.parent.nodeid if item.parent is not None else ""
            tests.setdefault((parent, item.name.partition("[")[0]), []).append(item)
    for cases in tests.values():
        cases.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        marker = cases[0].get_closest_marker("sample")
        assert marker is not None
        for item in cases[math.ceil(len(cases) / marker.args[0]) :]:
            item.add_marker(pytest.mark.slow)
