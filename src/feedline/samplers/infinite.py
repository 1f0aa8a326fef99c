"""Indices without end."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key
from feedline.samplers.seeded import Seeded, shuffled_passes
from feedline.types import Key


class InfiniteSampler(Seeded):
    """Goes through a dataset again and again, each time in another order. It has no length.

    Every index comes once in each pass, so none is ever more than two passes away.

    Args:
        data_source: The dataset; only its length matters.
        shuffle: False repeats 0, 1, 2, ... instead.
        seed: Fixes the order.
        generator: torch or NumPy generator to draw the seed from, when an iteration begins.

    Example:
        >>> from itertools import islice
        >>> list(islice(InfiniteSampler("abc", shuffle=False), 7))
        [0, 1, 2, 0, 1, 2, 0]
    """

    def __init__(
        self, data_source: Sized, *, shuffle: bool = True, seed: int | None = None, generator: Any = None
    ) -> None:
        super().__init__(seed, generator)
        if len(data_source) == 0:
            raise BadOption("The dataset is empty: it cannot be repeated without end.")
        self.data_source = data_source
        self.shuffle = shuffle

    def size(self) -> None:
        return None

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        count = len(self.data_source)
        return shuffled_passes(places, count, epoch_key(key.seed, key.epoch)) if self.shuffle else places % count

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "samples": len(self.data_source), "shuffle": self.shuffle}

    def __repr__(self) -> str:
        return f"InfiniteSampler({len(self.data_source)} samples, shuffle={self.shuffle}{self._origin()})"
