"""The sampler contracts: an order is a function from positions to indices.

A sampler holds no position of its own. Its consumer (the loader's plan, `iter(sampler)`) tracks the position and
requests the indices at the positions it needs, under the key of the epoch. So any rank can start anywhere in an order,
and the order uses no memory.
"""

from __future__ import annotations

import operator
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.system.ranks import Share
from feedline.types import Key

IndexArray = NDArray[np.int64]

_FIRST_BLOCK, _BLOCK = 1 << 8, 1 << 14
"""Indices that `iter(sampler)` makes at a time: few at first, to return quickly, then twice as many each time."""


class Ordered(ABC):
    """The common base of both kinds of samplers: a seed, an epoch, a size."""

    seed: int | None = None
    """None: draw a new seed for every epoch, by torch's rules (from `generator`, else from torch's default)."""
    generator: Any = None
    """A torch or NumPy generator to draw seeds from."""
    epoch: int = 0
    """The next epoch."""
    epoch_was_set: bool = False
    """True after `set_epoch`, until an iteration starts. A loader numbers epochs itself unless this is True."""
    share: Share | None = None
    """This rank's part of the order of `whole()`; None if this sampler yields the whole order."""
    loader_seed: int | None = None
    """The seed that a loader uses for this order; see `follow`."""
    _counts: bool = False
    """True if a loader only sets the first epoch, and each iteration from there on is another epoch."""

    @abstractmethod
    def size(self) -> int | None:
        """Return how many indices (or batches) an epoch has; None if it is endless."""

    def whole(self) -> Ordered:
        """Return the order that all ranks share; this sampler yields a part of it."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return the properties that a saved state must match: kind and size, in plain values that JSON supports."""
        return {"kind": type(self).__name__, "size": self.size()}

    def __len__(self) -> int:
        size = self.size()
        if size is None:
            raise TypeError(f"{type(self).__name__} never ends: it has no length.")
        return size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = operator.index(epoch)
        self.epoch_was_set = True

    def draw_seed(self) -> int:
        """Return the seed of the next epoch: `seed`, or a fresh one if that is None."""
        return draw_seed(self.generator) if self.seed is None else self.seed

    def follow(self, seed: int | None) -> None:
        """Use the seed and the epochs of a loader, unless the order is redrawn for every epoch.

        Other code that iterates over the sampler then gets the loader's order of the epoch `epoch`, every time. A
        generator that a framework assigns to the sampler later has no effect.

        Args:
            seed: the loader's seed; None if it has none. The sampler's own seed takes precedence.
        """
        own = self.whole().seed
        is_drawn = own is None and self.generator is not None and self.loader_seed is None
        self.loader_seed = None if is_drawn or seed is None else seed if own is None else own

    def enter(self, epoch: int) -> None:
        """Start an epoch of a loader that iterates over a wrapper of this sampler, not over the sampler itself.

        The wrapper may iterate over the sampler several times in one epoch, or over a part of it.
        """
        self._counts = True
        if not self.epoch_was_set:
            self.epoch = epoch

    def begin(self) -> Key:
        """Return the key of an iteration that starts now, and count the iteration unless a loader counts epochs."""
        if self.loader_seed is not None and not self._counts:
            return Key(self.loader_seed, self.epoch)
        key = Key(self.draw_seed() if self.loader_seed is None else self.loader_seed, self.epoch)
        self.epoch += 1
        self.epoch_was_set = False
        return key


class Sampler(Ordered):
    """Yields indices. Subclass it with `size` and `at`.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import Sampler
        >>> class EverySecond(Sampler):
        ...     def size(self):
        ...         return 3
        ...     def at(self, places, key):
        ...         return places * 2
        >>> [batch.tolist() for batch in Loader(list(range(6)), 2, sampler=EverySecond())]
        [[0, 2], [4]]
    """

    @abstractmethod
    def at(self, places: IndexArray, key: Key) -> IndexArray:
        """Return the indices at these positions (0 to size - 1, in any order) of the epoch of `key`.

        Pure: the same arguments give the same indices, in every process.
        """

    def whole(self) -> Sampler:
        """Return the order that all ranks share; this sampler yields a part of it."""
        return self

    def __iter__(self) -> Iterator[int]:
        key = self.begin()
        size = self.size()
        start, block = 0, _FIRST_BLOCK
        while size is None or start < size:
            stop = start + block if size is None else min(start + block, size)
            yield from self.at(np.arange(start, stop, dtype=np.int64), key).tolist()
            start, block = stop, min(2 * block, _BLOCK)


class BatchSampler(Ordered):
    """Yields batches of indices. Subclass it with `size` and `batch`.

    Example:
        >>> import numpy as np
        >>> from feedline import Loader
        >>> from feedline.abc import BatchSampler
        >>> class Neighbours(BatchSampler):
        ...     def size(self):
        ...         return 2
        ...     def batch(self, number, key):
        ...         return np.array([number, number + 1])
        >>> [batch.tolist() for batch in Loader([10, 20, 30], batch_sampler=Neighbours())]
        [[10, 20], [20, 30]]
    """

    deals_to_ranks = False
    """True if the sampler decides itself which rank gets which samples: see `feedline.samplers.BalancedBatches`."""

    @abstractmethod
    def batch(self, number: int, key: Key) -> IndexArray:
        """Return the indices of batch `number` (0 to size - 1) of the epoch of `key`. Pure."""

    def check(self, key: Key) -> None:
        """Reject an epoch that cannot be completed; called when it starts."""

    def whole(self) -> BatchSampler:
        """Return the order of batches that all ranks share; this sampler yields a part of it."""
        return self

    def resumed(self, first: int) -> BatchSampler:
        """Return this rank's part of the order that remains after the first `first` batches of the whole order."""
        if self.share is not None:
            raise NotImplementedError(f"{type(self).__name__} yields a share of its order: override `resumed`.")
        return _Rest(self, first)

    def for_rank(self, share: Share, *, is_found: bool) -> BatchSampler:
        """Return a copy for another rank, if `deals_to_ranks`.

        Args:
            share: the rank.
            is_found: True if it was looked up, so that it may be looked up again.
        """
        raise NotImplementedError(f"{type(self).__name__} does not deal samples to ranks.")

    def cut_from(self) -> tuple[Sampler, int, bool] | None:
        """Return (sampler, batch size, drop_last) if the batches are consecutive slices of a sampler's indices."""
        return None

    def __iter__(self) -> Iterator[list[int]]:
        key = self.begin()
        size = self.size()
        number = 0
        while size is None or number < size:
            yield self.batch(number, key).tolist()
            number += 1


class _Rest(BatchSampler):
    """The batches of another sampler from a given number on."""

    def __init__(self, sampler: BatchSampler, first: int) -> None:
        self._sampler = sampler
        self._first = first

    def size(self) -> int | None:
        size = self._sampler.size()
        return None if size is None else max(0, size - self._first)

    def batch(self, number: int, key: Key) -> IndexArray:
        return self._sampler.batch(self._first + number, key)


def draw_seed(generator: object = None) -> int:
    """Return a fresh seed: from `generator` (torch's or NumPy's), else from torch if the program uses it."""
    torch = sys.modules.get("torch")
    if torch is not None and (generator is None or isinstance(generator, torch.Generator)):
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    if generator is None:
        return secrets.randbits(63)
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    raise BadOption(f"generator={generator!r} is neither a torch.Generator nor a numpy.random.Generator.")
