"""The plain random orders: all indices, a subset, endless. Samplers that torch also has take torch's arguments."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from zlib import crc32

import numpy as np

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key
from feedline.samplers.draws import draw_below
from feedline.samplers.seeded import Seeded, shuffled_passes
from feedline.samplers.torch_bases import with_torch_base
from feedline.system.options import checked_count
from feedline.types import Key, State


@with_torch_base("RandomSampler")
class RandomSampler(Seeded):
    """Yields the indices of a dataset in random order, or draws them with replacement.

    No permutation is stored: the index at a position is computed. So a dataset of any size costs no memory, and
    iteration can start at any position.

    Args:
        data_source: The dataset; only its length is used, which is read in each epoch.
        replacement: Draw each index independently of those before it.
        num_samples: Indices in an epoch; as many as samples by default. Without replacement, a larger number goes
            through the dataset several times, each time in another order.
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
        generator: object = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed, generator)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement={replacement!r} is not a boolean.")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        if num_samples is not None:
            checked_count("num_samples", num_samples)
        if len(data_source) == 0:
            raise BadOption(f"The dataset is empty: num_samples={self.num_samples} indices cannot be drawn from it.")

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

    def describe(self) -> State:
        return {**super().describe(), "samples": len(self.data_source), "replacement": self.replacement}

    def __repr__(self) -> str:
        count = f", num_samples={self.num_samples}" if self._num_samples is not None else ""
        drawn = ", replacement=True" if self.replacement else ""
        return f"RandomSampler({len(self.data_source)} samples{drawn}{count}{self._origin()})"


@with_torch_base("SubsetRandomSampler")
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

    # object: an array or tensor has no common type with a list.
    def __init__(self, indices: Sequence[int] | object, generator: object = None, *, seed: int | None = None) -> None:
        super().__init__(seed, generator)
        self.indices = indices
        array = np.asarray(indices)
        if array.ndim != 1:
            raise BadOption(f"indices is not a list of integers but has shape {array.shape}.")
        if array.dtype == np.bool_ and len(array):
            raise BadOption("indices is a boolean mask. Pass the positions where it is true: numpy.flatnonzero(mask).")
        if array.dtype.kind not in "iu" and len(array):
            raise BadOption(f"indices holds {array.dtype} values, for example {array[0]!r}; it must hold integers.")
        self._array = array.astype(np.int64)

    def size(self) -> int:
        return len(self._array)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return self._array[shuffled_passes(places, len(self._array), epoch_key(key.seed, key.epoch))]

    def describe(self) -> State:
        return {**super().describe(), "checksum": crc32(self._array.data)}

    def __repr__(self) -> str:
        return f"SubsetRandomSampler({len(self._array)} indices{self._origin()})"


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
        self, data_source: Sized, *, shuffle: bool = True, seed: int | None = None, generator: object = None
    ) -> None:
        super().__init__(seed, generator)
        if len(data_source) == 0:
            raise BadOption("The dataset is empty: there is nothing to repeat.")
        self.data_source = data_source
        self.shuffle = shuffle

    def size(self) -> None:
        return None

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        count = len(self.data_source)
        return shuffled_passes(places, count, epoch_key(key.seed, key.epoch)) if self.shuffle else places % count

    def describe(self) -> State:
        return {**super().describe(), "samples": len(self.data_source), "shuffle": self.shuffle}

    def __repr__(self) -> str:
        return f"InfiniteSampler({len(self.data_source)} samples, shuffle={self.shuffle}{self._origin()})"
