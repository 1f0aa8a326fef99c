"""torch's own samplers, obeyed to the letter but in blocks instead of one Python integer at a time.

The same random numbers are drawn in the same order and at the same moments as torch's iterators draw them, so a
generator that is shared with other code ends in the same state. Only exact types are recognised.
Test: tests/frameworks/test_torch_samplers.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import RandomSampler, SequentialSampler

_BLOCK = 1 << 16


def index_blocks(sampler: Any) -> Iterator[NDArray[np.int64]] | None:
    """Return what a torch sampler yields, in blocks; None if it is not one of torch's and has to be iterated."""
    if type(sampler) is SequentialSampler:
        return _sequential(sampler)
    if type(sampler) is RandomSampler:
        return _random(sampler)
    return None


def _sequential(sampler: SequentialSampler) -> Iterator[NDArray[np.int64]]:
    count = len(sampler.data_source)
    for start in range(0, count, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, count), dtype=np.int64)


def _random(sampler: RandomSampler) -> Iterator[NDArray[np.int64]]:
    count = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    wanted = sampler.num_samples
    if sampler.replacement:
        for size in [32] * (wanted // 32) + [wanted % 32]:
            yield torch.randint(high=count, size=(size,), dtype=torch.int64, generator=generator).numpy()
        return
    for _ in range(wanted // count):
        yield _permutation(count, generator)
    yield _permutation(count, generator)[: wanted % count]


def _permutation(count: int, generator: Any) -> NDArray[np.int64]:
    return torch.randperm(count, generator=generator).numpy()
