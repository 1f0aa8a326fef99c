"""The order of shards in an epoch, which all ranks and workers share. Row groups of Parquet files are shards, too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import epoch_key, mix


def shuffled(count: int, seed: int, epoch: int, homes: int = 1) -> list[int]:
    """Return shards in a random order in which turn t has a shard of home t modulo `homes`.

    The homes divide the shards among them, the same way in every epoch. Rank r takes the turns r, r + ranks, ..., so a
    rank with a home of its own reads the same shards in every epoch.

    Example:
        >>> first, second = (shuffled(8, 0, epoch, homes=2) for epoch in (0, 1))
        >>> first != second, set(first[::2]) == set(second[::2])
        (True, True)
    """
    key = mix(epoch_key(seed, epoch), 0)
    if homes == 1:
        return _listed(_shuffled(np.arange(count), key))
    order = _shuffled(np.arange(count), mix(seed, homes))
    for home in range(min(homes, count)):
        order[home::homes] = _shuffled(order[home::homes], mix(key, home))
    return _listed(order)


def order_of(count: int, seed: int | None, homes: int, epoch: int) -> list[int]:
    """Return shards in the order of an epoch; as they are listed if there is no seed."""
    return list(range(count)) if seed is None or not count else shuffled(count, seed, epoch, homes)


def _listed(order: NDArray[np.int64]) -> list[int]:
    found: list[int] = order.tolist()
    return found


def _shuffled(items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = items[Bijection(len(items), key)(np.arange(len(items)))]
    return found
