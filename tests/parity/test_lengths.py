"""`len(loader)`: its value, what it depends on, and when it is unknown."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.parity import datasets
from tests.parity.sides import Parity, Side, same_as_it_is

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 12, 100)
BATCH_SIZES = (1, 2, 3, 4, 5, 7, 64, 101)


class UnsizedSampler:
    def __iter__(self) -> Iterator[int]:
        return iter([0, 1, 2])


class EpochSampler:
    """Gets longer every epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return 2 + self.epoch


@pytest.mark.parametrize("drop_last", [False, True])
@same_as_it_is
def test_the_length_for_a_map_dataset(side: Side, drop_last: bool) -> object:
    lengths = []
    for n, batch_size in itertools.product(SIZES, BATCH_SIZES):
        loader = side.kind(datasets.Squares(n), batch_size=batch_size, drop_last=drop_last)
        lengths.append((n, batch_size, len(loader)))
    return lengths


def sampler_cases() -> dict[str, Any]:
    weights = torch.tensor([0.1, 0.9, 0.4, 0.2])
    return {
        "list": [1, 2, 3],
        "tuple": (4, 5),
        "empty list": [],
        "range": range(7),
        "set": {1, 2},
        "tensor": torch.tensor([1, 2, 3, 4]),
        "random": RandomSampler(range(9)),
        "more than there is": RandomSampler(range(5), replacement=True, num_samples=23),
        "subset": SubsetRandomSampler([1, 2, 4]),
        "weighted": WeightedRandomSampler(weights.tolist(), 11),
        "distributed": DistributedSampler(datasets.Squares(10), num_replicas=3, rank=0),
        "distributed, dropping": DistributedSampler(datasets.Squares(10), num_replicas=3, rank=2, drop_last=True),
        "epoch": EpochSampler(),
    }


@pytest.mark.parametrize("name", sampler_cases())
@same_as_it_is
def test_the_length_follows_the_sampler(side: Side, name: str) -> object:
    return [
        len(side.kind(datasets.Squares(10), sampler=sampler_cases()[name], batch_size=size, drop_last=drop))
        for size, drop in [(1, False), (2, False), (2, True), (5, True)]
    ] + [len(side.kind(datasets.Squares(10), sampler=sampler_cases()[name], batch_size=None))]


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: {"dataset": datasets.Identity()},
        lambda: {"dataset": datasets.Counting()},
        lambda: {"dataset": datasets.Squares(), "sampler": UnsizedSampler()},
        lambda: {"dataset": datasets.Squares(), "batch_sampler": iter([[0, 1]])},
    ],
)
def test_an_unknown_length_raises_torchs_error(plain_parity: Parity, arguments: Any) -> None:
    plain_parity.same_refusal(lambda side: len(side.kind(**arguments())))


# An iterable dataset that delivers more than it reported causes a warning if the length was read.


@pytest.mark.parametrize(("batch_size", "was_read"), [(None, True), (1, False), (2, True)])
def test_a_stream_longer_than_its_length_warns_if_the_length_was_read(
    parity: Parity, batch_size: int | None, was_read: bool
) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.SizedCounting(7, 3), batch_size=batch_size)
        if was_read:
            len(loader)
        return list(loader)

    warned = parity.same(code).warnings
    samples = 14 if parity.workers else 7
    fetched = samples if batch_size is None else -(-samples // batch_size)
    assert bool(warned) == (was_read and fetched > 3)
