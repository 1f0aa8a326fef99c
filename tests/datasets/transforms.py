"""Transforms that tests of sources share."""

from __future__ import annotations

from typing import Any


class FailsOnce:
    """A transform that fails the first time it sees certain samples."""

    def __init__(self, numbers: set[int]) -> None:
        self.left = numbers

    def __call__(self, number: Any) -> Any:
        if int(number) in self.left:
            self.left.remove(int(number))
            raise OSError("not yet")
        return number
