"""Batches with the classes of the dataset in proportion.

Think of all positions of an epoch in one row, class after class. Batch number g of m takes every m-th position of the
row, starting at g. A class is a range of the row, so for any length every batch has the same number of its positions
or one more. Batches come in the order g = 0, a, 2a, ... modulo m with a near the golden section of m, which spreads the
range of a rare class evenly over the epoch.

The positions of a class, in the order of the batches, go through its members; a class with more positions than members
is repeated, in another order. The row differs between epochs in the order of the classes and in its starting point.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.bijection import indices_at
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers.labels import classes_of
from feedline.samplers.seeded import SeededBatches, refuse_sampler
from feedline.system.options import checked_count
from feedline.types import Key, State

Mode: TypeAlias = Literal["proportional", "each"]
MODES = get_args(Mode)

_GOLDEN = (math.sqrt(5) - 1) / 2
_CLASSES, _BEGIN, _PHASE, _MEMBERS, _WITHIN = range(5)
"""Values mixed into the key of an epoch, so that its random decisions are independent."""


class StratifiedBatchSampler(SeededBatches):
    """Yields batches in which each class has its share.

    The batches of an epoch are made together. One integer per sample is kept, and one for each in the epoch.

    Args:
        labels: the class of each sample: integers or strings, as a list, array or tensor.
        batch_size: samples in a batch.
        mode: "proportional": every batch has the proportions of the dataset, each count rounded down or up, and an
            epoch has every sample once. "each": every batch also has at least one sample of each class. Classes with a
            smaller share are repeated within an epoch, in another order each time; the others share the rest of the
            batch in proportion. An epoch is the smallest number of batches in which every sample can come at least
            once. All of them are full.
        drop_last: leave out a last batch that is smaller. Which samples are left out differs from epoch to epoch.
        shuffle: False for the same batches in every epoch, each in the order of the dataset.
        seed: fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.

    Raises:
        BadOption: there are no labels or some are missing, or a batch is too small for all classes.

    Example:
        >>> labels = ["cat"] * 6 + ["dog"] * 3
        >>> sampler = StratifiedBatchSampler(labels, 3, seed=1)
        >>> sampler
        StratifiedBatchSampler(9 labels of 2 classes, batch_size=3, seed=1)
        >>> [sorted(labels[index] for index in batch) for batch in sampler]
        [['cat', 'cat', 'dog'], ['cat', 'cat', 'dog'], ['cat', 'cat', 'dog']]
    """

    # object: an array or tensor has no common type with a list; a torch or NumPy generator.
    def __init__(
        self,
        labels: object,
        batch_size: int,
        *,
        mode: Mode = "proportional",
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        generator: object = None,
    ) -> None:
        super().__init__(drop_last=drop_last, shuffle=shuffle, seed=seed, generator=generator)
        self.batch_size = checked_count("batch_size", batch_size)
        if mode not in MODES:
            raise BadOption(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
        self.mode = mode
        refuse_sampler("labels", labels)
        numbers, self.classes = classes_of(labels)
        if len(numbers) == 0:
            raise BadOption("labels is empty: there is nothing to make batches of.")
        self._members = np.argsort(numbers, kind="stable")
        self._sizes = sizes = np.bincount(numbers)
        self._full = _least_batches(sizes, self.batch_size) if mode == "each" else len(numbers) // self.batch_size
        """Full batches of an epoch."""
        self._least = self._full if mode == "each" else 0
        """Minimum number of positions of a class in full batches, however few members it has."""
        self._surplus = self._full * self.batch_size - int(np.maximum(sizes, self._least).sum())
        """Positions beyond what the classes need; if negative, the remaining samples make a last batch."""
        self._epoch: tuple[Key, IndexArray] | None = None

    def size(self) -> int:
        return self._full + (self._surplus < 0 and not self.drop_last)

    def batch(self, number: int, key: Key) -> IndexArray:
        self._check_number(number)
        secret = epoch_key(key.seed, key.epoch)
        epoch = self._epoch  # read once: other threads may replace it
        if epoch is None or epoch[0] != key:
            epoch = self._epoch = key, self._samples(self._kinds(secret), secret)
        batch = epoch[1][number * self.batch_size : (number + 1) * self.batch_size]
        if not self.shuffle:
            return np.sort(batch)
        return batch[np.argsort(mix_array(mix(mix(secret, _WITHIN), number), np.arange(len(batch))))]

    def _kinds(self, secret: int) -> IndexArray:
        """Return the classes of the samples of an epoch, batch by batch."""
        full, classes, begin, phase = self._full, np.arange(len(self._sizes)), 0, 0
        if self.shuffle:
            classes = np.argsort(mix_array(mix(secret, _CLASSES), classes))
            begin = mix(secret, _BEGIN) % max(full, 1)
            phase = mix(secret, _PHASE) % int(self._sizes.sum())
        sizes = self._sizes[classes]
        shares = _spread(self._surplus, sizes, phase)
        row = np.repeat(classes, np.maximum(sizes, self._least) + shares)
        stride = max(1, round(full * _GOLDEN))
        while math.gcd(stride, full) > 1:
            stride += 1
        order = (begin + np.arange(full) * stride) % max(full, 1)
        kinds = row.reshape(self.batch_size, full).T[order].reshape(-1)
        return kinds if self._surplus >= 0 else np.append(kinds, np.repeat(classes, -shares))

    def _samples(self, kinds: IndexArray, secret: int) -> IndexArray:
        """Return samples of these classes; each class goes through its members."""
        by_class = np.argsort(kinds, kind="stable")
        counts = np.bincount(kinds, minlength=len(self._sizes))
        turns = np.empty_like(kinds)
        turns[by_class] = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
        sizes = self._sizes[kinds]
        passes, places = np.divmod(turns, sizes)
        if self.shuffle:
            places = indices_at(places, sizes, mix_array(mix(secret, _MEMBERS), (kinds << 32) + passes))
        found: IndexArray = self._members[(np.cumsum(self._sizes) - self._sizes)[kinds] + places]
        return found

    @cached_property
    def _checksum(self) -> int:
        return crc32(self._sizes.data, crc32(self._members.data))

    def describe(self) -> State:
        return {
            **super().describe(),
            "batch_size": self.batch_size,
            "mode": self.mode,
            "shuffle": self.shuffle,
            "checksum": self._checksum,
        }

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epoch": None}

    def __repr__(self) -> str:
        mode = "" if self.mode == MODES[0] else f", mode={self.mode!r}"
        return (
            f"StratifiedBatchSampler({len(self._members)} labels of {len(self.classes)} classes, "
            f"batch_size={self.batch_size}{mode}{self._options()})"
        )


def _least_batches(sizes: IndexArray, batch_size: int) -> int:
    """Return how many batches it takes to include every sample, if each batch has a sample of each class."""
    if batch_size < len(sizes):
        raise BadOption(
            f"mode='each' needs a sample of each of the {len(sizes)} classes in a batch, but batch_size={batch_size}. "
            f"Use a batch size of at least {len(sizes)}, or mode='proportional'."
        )
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high) // 2
        if int(np.maximum(sizes, middle).sum()) <= middle * batch_size:
            high = middle
        else:
            low = middle + 1
    return low


def _spread(total: int, sizes: IndexArray, phase: int) -> IndexArray:
    """Divide `total` (which may be negative) in proportion to sizes, each share rounded down or up.

    `phase`, from 0 to the sum of sizes - 1, decides which shares are rounded up.

    Example:
        >>> _spread(3, np.array([2, 2, 1]), 0).tolist(), _spread(3, np.array([2, 2, 1]), 4).tolist()
        ([1, 1, 1], [2, 1, 0])
    """
    ends = np.cumsum(sizes)
    return np.diff((ends * total + phase) // int(ends[-1]), prepend=0)
