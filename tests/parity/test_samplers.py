"""Order: custom samplers and other iterables; torch's are in `test_grid.py`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
)

from tests.parity import datasets
from tests.parity.sides import Parity, Side, same, same_inline

pytestmark = pytest.mark.workers(1)

N = 11


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Buckets(Sampler[list[int]]):
    """Batches of uneven size."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [3], [4, 5], [10, 9, 8, 7])

    def __len__(self) -> int:
        return 4


class Recording(Sampler[int]):
    """Counts how many indices were read."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.n):
            self.read += 1
            yield index

    def __len__(self) -> int:
        return self.n


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random, seeded": lambda: RandomSampler(range(N), generator=seeded()),
    "random with replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=40),
    "more than there are": lambda: RandomSampler(range(N), num_samples=25),
    "range": lambda: range(0, N, 3),
    "dict keys": lambda: dict.fromkeys([5, 3, 1]),
    "array": lambda: np.array([3, 1, 2]),
    "tensor": lambda: torch.tensor([3, 1, 2]),
    "empty": lambda: [],
    "negative": lambda: [-1, -2],
}


@pytest.mark.parametrize("name", SAMPLERS)
@same_inline
def test_every_sampler_over_three_epochs(side: Side, name: str) -> object:
    loader = side.loader(datasets.Squares(N), sampler=SAMPLERS[name](), batch_size=4)
    return list(loader), list(loader), list(loader)


# Shuffling: the same seed gives the same order as torch's


@same
def test_a_generator_gives_torchs_order_over_epochs(side: Side) -> object:
    generator = seeded(2**40)
    loader = side.loader(datasets.Squares(N), batch_size=3, shuffle=True, generator=generator)
    return list(loader), list(loader), list(loader), torch.rand((), generator=generator)


# Batch samplers

BATCH_SAMPLERS: dict[str, Callable[[], Any]] = {
    "list of ranges": lambda: [range(2), range(5, 8)],
    "list of arrays": lambda: [np.array([0, 1]), np.array([2, 3])],
    "own": Buckets,
    "empty": lambda: [],
    "one-shot generator": lambda: ([i, i + 1] for i in range(0, 6, 2)),
}


@pytest.mark.parametrize("name", BATCH_SAMPLERS)
@same_inline
def test_every_batch_sampler(side: Side, name: str) -> object:
    loader = side.loader(datasets.Squares(N), batch_sampler=BATCH_SAMPLERS[name]())
    return list(loader), list(loader)


# Without automatic batching


@same
def test_anything_the_sampler_yields_reaches_the_dataset(side: Side) -> object:
    anything = [[0, 1], {"start": 0, "stop": 3}, None, slice(0, 3), ..., 2.5, torch.tensor([1, 2]), torch.tensor(3)]
    collate = datasets.as_single
    return list(side.loader(datasets.Identity(), batch_size=None, sampler=anything, collate_fn=collate))


# How a sampler is read


@same
def test_an_endless_sampler_is_not_read_to_its_end(side: Side) -> object:
    loader = side.loader(datasets.Squares(N), sampler=itertools.cycle(range(N)), batch_size=3)
    return list(itertools.islice(loader, 6))


@same_inline
def test_inline_the_sampler_is_read_one_batch_at_a_time(side: Side) -> object:
    sampler = Recording(12)
    return [sampler.read for _ in side.loader(datasets.Squares(12), sampler=sampler, batch_size=3)]


@pytest.mark.parametrize("prefetch", [1, 4])
def test_with_workers_the_sampler_is_read_no_further_ahead_than_by_torch(worker_parity: Parity, prefetch: int) -> None:
    """Except for batches given to idle workers while a slow one was waited for, as on a busy machine."""
    read: dict[bool, list[int]] = {}
    extra: list[int] = []

    def code(side: Side) -> object:
        sampler = Recording(60)
        loader = side.loader(datasets.Squares(60), sampler=sampler, batch_size=2, prefetch_factor=prefetch)
        read[side.is_feedline] = [sampler.read for _ in loader]
        if side.is_feedline:
            extra.append(2 * loader.stats()["run_ahead_tasks"])
        return None

    fresh = Parity(
        worker_parity.feedline, (*worker_parity.key, worker_parity.feedline.options["engine"]), worker_parity.kept
    )
    fresh.same(code)
    too_far = [pair for pair in zip(read[True], read[False], strict=True) if pair[0] > pair[1] + extra[0]]
    assert not too_far, read
