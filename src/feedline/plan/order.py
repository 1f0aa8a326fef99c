"""In which order the indices of a dataset come. Pure: the same arguments give the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16


def sequential(count: int) -> Iterator[NDArray[np.int64]]:
    """Yield 0 to `count` - 1 in blocks.

    Example:
        >>> [block.tolist() for block in sequential(3)]
        [[0, 1, 2]]
    """
    for start in range(0, count, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, count), dtype=np.int64)


def shuffled(count: int, *, seed: int | None, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Yield 0 to `count` - 1 in an order that follows from seed and epoch; without a seed, in any order.

    Example:
        >>> [sorted(block.tolist()) for block in shuffled(6, seed=1, epoch=0)]
        [[0, 1, 2, 3, 4, 5]]
    """
    generator = np.random.default_rng(None if seed is None else [seed, epoch])
    yield generator.permutation(count)


def grouped(indices: Iterable[Any], batch_size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    """Cut what a sampler yields into lists. The indices of a batch are asked for when the batch is.

    Example:
        >>> list(grouped("abcde", 2, drop_last=False))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(indices)
    while batch := list(islice(source, batch_size)):
        if len(batch) < batch_size and drop_last:
            return
        yield batch
