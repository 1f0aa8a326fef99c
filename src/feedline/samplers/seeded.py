"""The common parts of random samplers: seeds and generators, counts, passes that are each reshuffled."""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np

from feedline.abc.sampler import BatchSampler, IndexArray, Ordered, Sampler
from feedline.errors import BadOption
from feedline.randomness.bijection import SMALL, Bijection, small_orders
from feedline.randomness.keys import checked_seed, mix, mix_array

_AT_ONCE = 1 << 14
"""Numbers put in order at a time, if a dataset is so small that it has many passes."""


class _Origin(Ordered):
    """Where seeds come from: a given seed, or a generator."""

    def __init__(self, seed: int | None, generator: object) -> None:
        if seed is not None and generator is not None:
            raise BadOption(
                f"seed={seed!r} and generator={generator!r} were both given: a seed fixes every epoch, a generator "
                "draws each one. Drop one of them."
            )
        self.seed = None if seed is None else checked_seed(seed)
        self.generator = generator

    def _origin(self) -> str:
        """Describe where seeds come from, for `__repr__`."""
        if self.generator is not None:
            return f", generator={self.generator!r}"
        return "" if self.seed is None else f", seed={self.seed}"


class Seeded(_Origin, Sampler):
    """Base of samplers that take a seed, or a generator to draw one from."""


@lru_cache(maxsize=64)
def _order(size: int, key: int) -> Bijection:
    return Bijection(size, key)


def shuffled_passes(places: IndexArray, size: int, key: int) -> IndexArray:
    """Return the indices of an order that goes through `size` numbers repeatedly, each time in another order."""
    if len(places) == 0:
        return np.empty(0, np.int64)
    first, last = int(places.min()) // size, int(places.max()) // size
    if first == last:
        return _order(size, mix(key, first))(places - first * size)
    passes, within = np.divmod(places, size)
    numbers, row = np.unique(passes, return_inverse=True)
    out = np.empty(len(places), np.int64)
    # A small dataset has many passes, which are made many at a time.
    at_once = _AT_ONCE // size if size <= SMALL else 1
    for start in range(0, len(numbers), at_once):
        where = np.flatnonzero((row >= start) & (row < start + at_once))
        if size <= SMALL:
            orders = small_orders(size, mix_array(key, numbers[start : start + at_once]))
            out[where] = orders[row[where] - start, within[where]]
        else:
            out[where] = _order(size, mix(key, int(numbers[start])))(within[where])
    return out


class SeededBatches(_Origin, BatchSampler):
    """Base of batch samplers that make their own order."""

    # object: a torch or NumPy generator.
    def __init__(self, *, drop_last: bool, shuffle: bool, seed: int | None, generator: object) -> None:
        super().__init__(seed, generator)
        for name, value in (("drop_last", drop_last), ("shuffle", shuffle)):
            if not isinstance(value, (bool, np.bool_)):
                raise BadOption(f"{name}={value!r} is not True or False.")
        self.drop_last = bool(drop_last)
        self.shuffle = bool(shuffle)

    def _options(self) -> str:
        """Describe the options that differ from the defaults, for `__repr__`."""
        return f"{', drop_last=True' * self.drop_last}{', shuffle=False' * (not self.shuffle)}{self._origin()}"

    def _check_number(self, number: int) -> None:
        size = self.size()
        if size is not None and not 0 <= number < size:
            raise IndexError(f"batch {number} is not among the {size} batches of an epoch, 0 to {size - 1}.")


# object: a value from the user or a framework.
def refuse_sampler(name: str, value: object) -> None:
    """Reject a sampler in place of lengths or labels, where frameworks put one to distribute batches over ranks."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, Sampler) or (torch_data is not None and isinstance(value, torch_data.Sampler)):
        raise BadOption(
            f"{name} is a {type(value).__name__}. A framework probably tried to distribute batches over ranks, which "
            "works only for a plain BatchSampler. Once the ranks have started, give the loader "
            "batch_sampler=feedline.samplers.distribute(...) around this batch sampler, which frameworks leave alone."
        )
