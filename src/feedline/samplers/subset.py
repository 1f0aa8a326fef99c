"""Given indices in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key
from feedline.samplers.seeded import Seeded, shuffled_passes
from feedline.types import Key


class SubsetRandomSampler(Seeded):
    """Yields the given indices in random order, each once.

    Args:
        indices: A list, range, array or tensor of integers.
        generator: torch or NumPy generator to draw the seed of each epoch from; torch's default generator if None.
        seed: Fixes the orders of all epochs instead.

    Example:
        >>> sorted(SubsetRandomSampler([10, 20, 30]))
        [10, 20, 30]
    """

    # Any: an array or tensor has no common type with a list.
    def __init__(self, indices: Sequence[int] | Any, generator: Any = None, *, seed: int | None = None) -> None:
        super().__init__(seed, generator)
        self.indices = indices
        array = np.asarray(indices)
        if array.ndim != 1:
            raise BadOption(f"indices is not a list of integers but has shape {array.shape}.")
        if array.dtype == np.bool_ and len(array):
            raise BadOption("indices is a mask of booleans. Pass the places where it is true: numpy.flatnonzero(mask).")
        if array.dtype.kind not in "iu" and len(array):
            raise BadOption(f"indices holds {array.dtype} values, for example {array[0]!r}; it must hold integers.")
        self._array = array.astype(np.int64)

    def size(self) -> int:
        return len(self._array)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return self._array[shuffled_passes(places, len(self._array), epoch_key(key.seed, key.epoch))]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "checksum": crc32(self._array.data)}

    def __repr__(self) -> str:
        return f"SubsetRandomSampler({len(self._array)} indices{self._origin()})"
