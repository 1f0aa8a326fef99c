"""Indices in random order."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key
from feedline.samplers.counts import is_count
from feedline.samplers.draws import draw_below
from feedline.samplers.seeded import Seeded, shuffled_passes
from feedline.types import Key


class RandomSampler(Seeded):
    """Yields the indices of a dataset in random order, or draws them with replacement.

    No permutation is ever held: the index at a place is computed, so that a dataset of any size costs no memory and its
    order is entered anywhere.

    Args:
        data_source: The dataset; only its length matters, and is asked for in each epoch.
        replacement: Draw each index anew, whatever came before.
        num_samples: Indices in an epoch; as many as samples by default. Without replacement, more than that go through
            the dataset several times, each time in another order.
        generator: torch or NumPy generator to draw the seed of each epoch from; torch's default generator if None.
        seed: Fixes the orders of all epochs instead.

    Example:
        >>> sampler = RandomSampler(range(5), seed=1)
        >>> sorted(sampler), sorted(sampler)
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed, generator)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement={replacement!r} is not a boolean.")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        if not is_count(self.num_samples):
            why = "The dataset is empty. " if num_samples is None else ""
            raise BadOption(f"num_samples={self.num_samples!r} is not a positive integer. {why}".rstrip())
        if len(data_source) == 0:
            raise BadOption(f"The dataset is empty: num_samples={num_samples} indices cannot be drawn from it.")

    @property
    def num_samples(self) -> int:
        """Indices in an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def size(self) -> int:
        return self.num_samples

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        count = len(self.data_source)
        numbers = epoch_key(key.seed, key.epoch)
        return draw_below(count, places, numbers) if self.replacement else shuffled_passes(places, count, numbers)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "samples": len(self.data_source), "replacement": self.replacement}

    def __repr__(self) -> str:
        asked = f", num_samples={self.num_samples}" if self._num_samples is not None else ""
        drawn = ", replacement=True" if self.replacement else ""
        return f"RandomSampler({len(self.data_source)} samples{drawn}{asked}{self._origin()})"
