"""Indices as they come."""

from __future__ import annotations

from collections.abc import Sized

from feedline.abc.sampler import IndexArray, Sampler
from feedline.types import Key


class SequentialSampler(Sampler):
    """Yields 0 to `len(data_source)` - 1 in that order.

    Example:
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def size(self) -> int:
        return len(self.data_source)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return places

    def draw_seed(self) -> int:
        return 0  # nothing is drawn, and so nobody's generator is touched

    def __repr__(self) -> str:
        return f"SequentialSampler({self.size()} samples)"
