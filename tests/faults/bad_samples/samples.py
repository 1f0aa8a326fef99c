"""Helpers for tests of failing samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.faults.deaths import Once
from tests.faults.loaders import Bad, Numbers


def cut(numbers: Iterable[int], size: int = 4) -> list[list[int]]:
    """Cut numbers into batches."""
    left = list(numbers)
    return [left[start : start + size] for start in range(0, len(left), size)]


class Flaky(Numbers):
    """Samples of `bad` fail `times` times before they work."""

    def __init__(self, once: Once, count: int, bad: Iterable[int], times: int) -> None:
        super().__init__(count, bad)
        self.once = once
        self.times = times

    def __getitem__(self, index: int) -> Any:
        if index in self.bad and self.once.times(index) <= self.times:
            raise ConnectionError(f"{index} is not there yet")
        return index


def refuse_five(samples: list[Any]) -> list[Any]:
    if 5 in samples:
        raise Bad("in collate")
    return samples
