"""Batches with the classes of the dataset in proportion.

Think of all positions of an epoch in one row, class after class. Batch number g of m takes every m-th position of the
row, starting at g. A class is a range of the row, so for any length every batch has the same number of its positions
or one more, and the contents of a batch depend only on its number. Batches come in the order g = 0, a, 2a, ... modulo m
with a near the golden section of m, which spreads the range of a rare class evenly over the epoch.

A position of a class is called a turn; each class has its own order that assigns turns to members (`indices_at`). A
class with more turns than members is repeated, in another order.

The row differs between epochs in the order of the classes and in its starting point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.bijection import indices_at
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers.labels import classes_of
from feedline.samplers.seeded import SeededBatches, check_count, refuse_sampler
from feedline.types import Key, State

Mode: TypeAlias = Literal["proportional", "each"]
MODES = get_args(Mode)

_BLOCK = 1 << 13
"""Samples in the batches that are made at a time, so that NumPy's cost per call is small compared with that per sample.
"""

_GOLDEN = (math.sqrt(5) - 1) / 2
_CLASSES, _BEGIN, _PHASE, _MEMBERS, _WITHIN = range(5)
"""Values mixed into the key of an epoch, so that its random decisions are independent."""


class StratifiedBatchSampler(SeededBatches):
    """Yields batches in which each class has its share.

    Any batch can be made without those before it. One integer per sample is kept.

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
        self.batch_size = check_count("batch_size", batch_size)
        if mode not in MODES:
            raise BadOption(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
        self.mode = mode
        refuse_sampler("labels", labels)
        numbers, self.classes = classes_of(labels)
        if len(numbers) == 0:
            raise BadOption("labels is empty: there is nothing to make batches of.")
        self._members = np.argsort(numbers, kind="stable")
        self._strata = _strata(np.bincount(numbers), self.batch_size, each=mode == "each")
        self._row: _Row | None = None
        self._block: _Block | None = None
        self._last_number: int | None = None

    def size(self) -> int:
        strata = self._strata
        return strata.full + (strata.surplus < 0 and not self.drop_last)

    def batch(self, number: int, key: Key) -> IndexArray:
        self._check_number(number)
        row = self._row  # read once, as is the block: other threads may replace them
        if row is None or row.key != key:
            row = self._row = _Row(self._strata, key, shuffle=self.shuffle)
        if number == self._strata.full:
            return self._samples(row, range(number, number + 1), *row.last()).reshape(-1)
        block = self._block
        step = 1 if self._last_number is None else max(1, number - self._last_number)
        self._last_number = number
        if block is None or block.key != key or number not in block.numbers:
            # A rank's next batches are as far apart as its last two were.
            numbers = range(number, self._strata.full, step)[: max(1, _BLOCK // self.batch_size)]
            block = self._block = _Block(key, numbers, self._samples(row, numbers, *row.at(numbers)))
        batch: IndexArray = block.samples[block.numbers.index(number)]
        return batch.copy()

    def _samples(self, row: _Row, numbers: range, classes: IndexArray, turns: IndexArray) -> IndexArray:
        """Return the samples of some batches, one batch per row, given their classes and turns."""
        sizes = self._strata.sizes[classes]
        passes, places = np.divmod(turns, sizes)
        if self.shuffle:
            keys = mix_array(mix(row.secret, _MEMBERS), (classes << 32) + passes)
            places = indices_at(places.reshape(-1), sizes.reshape(-1), keys.reshape(-1)).reshape(places.shape)
        samples = self._members[self._strata.starts[classes] + places]
        if not self.shuffle:
            return np.sort(samples, axis=1)
        slots = np.asarray(numbers)[:, None] * self.batch_size + np.arange(samples.shape[1])
        order = np.argsort(mix_array(mix(row.secret, _WITHIN), slots), axis=1)
        return np.take_along_axis(samples, order, axis=1)

    @cached_property
    def _checksum(self) -> int:
        return crc32(self._strata.sizes.data, crc32(self._members.data))

    def describe(self) -> State:
        return {
            **super().describe(),
            "batch_size": self.batch_size,
            "mode": self.mode,
            "shuffle": self.shuffle,
            "checksum": self._checksum,
        }

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_row": None, "_block": None, "_last_number": None}

    def __repr__(self) -> str:
        mode = "" if self.mode == MODES[0] else f", mode={self.mode!r}"
        return (
            f"StratifiedBatchSampler({len(self._members)} labels of {len(self.classes)} classes, "
            f"batch_size={self.batch_size}{mode}{self._options()})"
        )


@dataclass(frozen=True)
class _Block:
    """Batches that were made together, one per row."""

    key: Key
    numbers: range
    samples: IndexArray


@dataclass(frozen=True)
class _Strata:
    """Values that are the same in all epochs."""

    sizes: IndexArray
    """Members of each class."""
    starts: IndexArray
    """Where each class begins in the table of members."""
    batch_size: int
    full: int
    """Full batches of an epoch."""
    least: int
    """Minimum number of turns of a class in full batches, however few members it has."""
    surplus: int
    """Positions of the full batches beyond what the classes need; if negative, the remaining samples make a last batch.
    """
    stride: int
    """Distance in the row between consecutive batches."""


def _strata(sizes: IndexArray, batch_size: int, *, each: bool) -> _Strata:
    full = _least_batches(sizes, batch_size) if each else int(sizes.sum()) // batch_size
    least = full if each else 0
    surplus = full * batch_size - int(np.maximum(sizes, least).sum())
    stride = max(1, round(full * _GOLDEN))
    while math.gcd(stride, full) > 1:
        stride += 1
    return _Strata(sizes, np.cumsum(sizes) - sizes, batch_size, full, least, surplus, stride)


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


class _Row:
    """The row of one epoch: the order of the classes, and how many turns each has."""

    def __init__(self, strata: _Strata, key: Key, *, shuffle: bool) -> None:
        self.key = key
        self.secret = secret = epoch_key(key.seed, key.epoch)
        self._strata = strata
        sizes, full = strata.sizes, strata.full
        self._classes = np.arange(len(sizes), dtype=np.int64)
        self._begin, phase = 0, 0
        if shuffle:
            self._classes = np.argsort(mix_array(mix(secret, _CLASSES), self._classes))
            self._begin = mix(secret, _BEGIN) % max(full, 1)
            phase = mix(secret, _PHASE) % int(sizes.sum())
        sizes = sizes[self._classes]
        shares = _spread(strata.surplus, sizes, phase)
        self._turns = np.maximum(sizes, strata.least) + shares
        self._shares = shares
        self._ends = np.cumsum(self._turns)

    def at(self, numbers: range) -> tuple[IndexArray, IndexArray]:
        """Return class and turn of each position of some full batches, one batch per row."""
        full, stride = self._strata.full, self._strata.stride
        # In Python's integers: a batch number times the stride may exceed 64 bits.
        begin = (numbers.start * stride + self._begin) % full
        begins = (begin + np.arange(len(numbers)) * (numbers.step * stride % full)) % full
        places = begins[:, None] + np.arange(self._strata.batch_size) * full
        where = np.searchsorted(self._ends, places, side="right")
        turns = self._turns[where]
        rounds, more = np.divmod(places - (self._ends[where] - turns), full)
        # First come the turns that each batch has, in the order of batches, so that all members of a class come once
        # before any comes again; then the turns that only some batches have.
        common = turns // full
        ordinary = np.asarray(numbers)[:, None] * common + rounds
        return self._classes[where], np.where(rounds < common, ordinary, common * full + more)

    def last(self) -> tuple[IndexArray, IndexArray]:
        """Return class and turn of each position of the last batch, which is not full."""
        counts = -self._shares
        where = np.repeat(np.arange(len(counts)), counts)
        rank = np.arange(len(where)) - (np.cumsum(counts) - counts)[where]
        return self._classes[where][None], (self._turns[where] + rank)[None]


def _spread(total: int, sizes: IndexArray, phase: int) -> IndexArray:
    """Divide `total` (which may be negative) in proportion to sizes, each share rounded down or up.

    `phase`, from 0 to the sum of sizes - 1, decides which shares are rounded up.

    Example:
        >>> _spread(3, np.array([2, 2, 1]), 0).tolist(), _spread(3, np.array([2, 2, 1]), 4).tolist()
        ([1, 1, 1], [2, 1, 0])
    """
    ends = np.cumsum(sizes)
    return np.diff((ends * total + phase) // int(ends[-1]), prepend=0)
