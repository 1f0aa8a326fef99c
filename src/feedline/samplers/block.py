"""Blocks in random order, and samples in random order among a few blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.bijection import Bijection, indices_at
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers.seeded import Seeded
from feedline.system.optional import is_tensor
from feedline.system.options import checked_count
from feedline.types import Key, State

_BLOCKS, _SAMPLES = range(2)
"""Values mixed into the key of an epoch, so that its random decisions are independent."""


class BlockSampler(Seeded):
    """Yields every index once, in an order that stays within a few blocks of neighbours at a time.

    For stores that read or unpack many samples together: HDF5 chunks, row groups, spinning disks. Blocks come in random
    order, and the samples of `window` blocks at a time are shuffled together. A store that keeps that many blocks in
    memory reads each of them once per epoch.

    It stores three numbers per block, for the last epoch requested, and nothing per sample.

    Args:
        sizes: how many samples each block has, in the order of the dataset: `HDF5Dataset.chunk_sizes`.
        window: how many blocks are shuffled together. 1 keeps the samples of a block together; the number of blocks
            gives a plain shuffle.
        seed: fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.

    Raises:
        BadOption: a size is not a count, or there are no samples.

    Example:
        >>> sampler = BlockSampler([4, 4, 4], window=1, seed=1)
        >>> order = list(sampler)
        >>> sorted(order) == list(range(12)), [len({index // 4 for index in order[n : n + 4]}) for n in (0, 4, 8)]
        (True, [1, 1, 1])
    """

    # object: an array or tensor has no common type with a list; a torch or NumPy generator.
    def __init__(self, sizes: object, window: int = 16, *, seed: int | None = None, generator: object = None) -> None:
        super().__init__(seed, generator)
        self.window = checked_count("window", window)
        self._sizes = _checked(sizes)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._count = int(self._sizes.sum())
        if self._count == 0:
            raise BadOption("The blocks have no samples: there is nothing to yield.")
        self._epoch_order: _Order | None = None

    def size(self) -> int:
        return self._count

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        order = self._epoch_order  # read once: other threads may replace it
        if order is None or order.key != key:
            order = self._epoch_order = _order(self._sizes, self.window, key)
        places = np.asarray(places, np.int64)
        windows = np.searchsorted(order.window_ends, places, side="right")
        ends = order.window_ends
        starts = np.where(windows > 0, ends[windows - 1], 0)
        keys = mix_array(order.secret, windows)
        shuffled = starts + indices_at(places - starts, ends[windows] - starts, keys)
        turns = np.searchsorted(order.ends, shuffled, side="right")
        blocks = order.blocks[turns]
        return self._starts[blocks] + shuffled - (order.ends[turns] - self._sizes[blocks])

    @cached_property
    def _checksum(self) -> int:
        return crc32(self._sizes.data)

    def describe(self) -> State:
        return {**super().describe(), "window": self.window, "checksum": self._checksum}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epoch_order": None}

    def __repr__(self) -> str:
        blocks = f"{self._count} samples in {len(self._sizes)} blocks"
        return f"BlockSampler({blocks}, window={self.window}{self._origin()})"


@dataclass(frozen=True)
class _Order:
    """The blocks of one epoch."""

    key: Key
    secret: int
    """Key of the orders inside the windows."""
    blocks: IndexArray
    """The blocks in the order in which they come."""
    ends: IndexArray
    """Where each of them ends."""
    window_ends: IndexArray


def _order(sizes: IndexArray, window: int, key: Key) -> _Order:
    numbers = epoch_key(key.seed, key.epoch)
    blocks = Bijection(len(sizes), mix(numbers, _BLOCKS))(np.arange(len(sizes), dtype=np.int64))
    ends = np.cumsum(sizes[blocks])
    window_ends = ends[window - 1 :: window]
    if len(ends) % window:
        window_ends = np.append(window_ends, ends[-1])
    return _Order(key, mix(numbers, _SAMPLES), blocks, ends, window_ends)


def _checked(sizes: object) -> IndexArray:
    array = sizes.numpy() if is_tensor(sizes) else np.asarray(sizes)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
        raise BadOption(f"sizes={sizes!r} is not a list of block sizes: whole numbers, one per block.")
    if array.min() < 0:
        raise BadOption(f"sizes has a block of {array.min()} samples: a size cannot be negative.")
    return array.astype(np.int64)
