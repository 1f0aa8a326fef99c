"""Helpers for tests of failing samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.faults.loaders import Bad


def cut(numbers: Iterable[int], size: int = 4) -> list[list[int]]:
    """Cut numbers into batches."""
    left = list(numbers)
    return [left[start : start + size] for start in range(0, len(left), size)]


def refuse_five(samples: list[Any]) -> list[Any]:
    if 5 in samples:
        raise Bad("in collate")
    return samples
