"""`len(loader)`: its value, what it depends on, and when it is unknown."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(8)

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
def test_the_length_for_a_map_dataset(plain_parity: Parity, drop_last: bool) -> None:
    def code(side: Side) -> object:
        lengths = []
        for n, batch_size in itertools.product(SIZES, BATCH_SIZES):
            loader = side.kind(datasets.Squares(n), batch_size=batch_size, drop_last=drop_last)
            lengths.append((n, batch_size, len(loader)))
        return lengths

    plain_parity.same(code)


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_for_an_iterable_dataset_is_rounded_up_or_down(plain_parity: Parity, drop_last: bool) -> None:
    def code(side: Side) -> object:
        lengths = []
        for n, batch_size in itertools.product(SIZES, BATCH_SIZES):
            loader = side.kind(datasets.SizedCounting(n, n), batch_size=batch_size, drop_last=drop_last)
            lengths.append((n, batch_size, len(loader)))
        return lengths

    plain_parity.same(code)


@pytest.mark.workers(1)
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_the_number_of_batches_delivered(parity: Parity, drop_last: bool) -> None:
    def code(side: Side) -> object:
        results = []
        for n, batch_size in [(0, 2), (1, 2), (5, 2), (6, 3), (7, 10)]:
            loader = side.loader(datasets.Squares(n), batch_size=batch_size, drop_last=drop_last)
            count = sum(1 for _ in loader)
            assert count == len(loader)
            results.append(count)
        return results

    parity.same(code)


@pytest.mark.parametrize("kind", [datasets.Squares, lambda n: datasets.SizedCounting(n, n)])
def test_without_batches_the_length_is_that_of_the_dataset(plain_parity: Parity, kind: Any) -> None:
    plain_parity.same(lambda side: [len(side.kind(kind(n), batch_size=None)) for n in SIZES])


def test_the_length_follows_a_growing_dataset(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Growing(3)
        loader = side.kind(dataset, batch_size=2)
        lengths = [len(loader)]
        for n in (4, 5, 9, 1, 0):
            dataset.n = n
            lengths.append(len(loader))
        dataset.n = 5
        return lengths, list(loader)

    plain_parity.same(code)


def test_a_dataset_that_grew_is_delivered_whole_in_the_next_epoch(parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Growing(3)
        loader = side.loader(dataset, batch_size=2)
        first = list(loader)
        dataset.n = 6
        return first, len(loader), list(loader)

    parity.same(code)


def test_the_length_follows_a_growing_shuffled_dataset(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Growing(3)
        loader = side.kind(dataset, batch_size=2, shuffle=True)
        before = len(loader)
        dataset.n = 8
        return before, len(loader), list(loader)

    plain_parity.same(code)


def test_the_length_follows_a_growing_iterable_dataset(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.SizedCounting(3, 3)
        loader = side.kind(dataset, batch_size=2)
        before = len(loader)
        dataset.reported = 9
        return before, len(loader)

    plain_parity.same(code)


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
def test_the_length_follows_the_sampler(plain_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        return [
            len(side.kind(datasets.Squares(10), sampler=sampler_cases()[name], batch_size=size, drop_last=drop))
            for size, drop in [(1, False), (2, False), (2, True), (5, True)]
        ] + [len(side.kind(datasets.Squares(10), sampler=sampler_cases()[name], batch_size=None))]

    plain_parity.same(code)


def test_the_length_follows_a_sampler_whose_length_changes(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        sampler = EpochSampler()
        loader = side.kind(datasets.Squares(10), sampler=sampler)
        seen = []
        for epoch in range(3):
            sampler.epoch = epoch
            seen.append((len(loader), list(loader)))
        return seen

    plain_parity.same(code)


@pytest.mark.parametrize(
    "batch_sampler",
    [
        [[0, 1], [2]],
        [],
        ([3], [4, 5]),
        BatchSampler(range(10), 3, False),
        BatchSampler(range(10), 3, True),
        BatchSampler(RandomSampler(range(10)), 4, False),
    ],
)
def test_the_length_follows_the_batch_sampler(plain_parity: Parity, batch_sampler: Any) -> None:
    plain_parity.same(lambda side: len(side.kind(datasets.Squares(10), batch_sampler=batch_sampler)))


def test_the_length_for_every_dataset_of_torch(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        tensors = TensorDataset(torch.arange(10), torch.arange(10))
        parts = random_split(tensors, [0.5, 0.3, 0.2], generator=torch.Generator().manual_seed(0))
        everything: list[Any] = [
            tensors,
            Subset(tensors, [1, 2, 3]),
            Subset(Subset(tensors, range(8)), [0, 5]),
            ConcatDataset([tensors, Subset(tensors, [4])]),
            StackDataset(tensors, datasets.Squares(10)),
            StackDataset(a=tensors, b=datasets.Squares(10)),
            *parts,
            SequenceWrapper(range(13)),
            [1, 2, 3],
            range(5),
            torch.arange(6),
        ]
        return [len(side.kind(dataset, batch_size=4)) for dataset in everything]

    plain_parity.same(code)


def test_the_length_for_chained_and_piped_iterables(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        chained = ChainDataset([datasets.SizedCounting(3, 3), datasets.SizedCounting(4, 4)])
        piped = IterableWrapper(range(9))
        return len(side.kind(chained, batch_size=2)), len(side.kind(piped, batch_size=2))

    plain_parity.same(code)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_the_length_does_not_depend_on_the_number_of_workers(plain_parity: Parity, workers: int) -> None:
    def code(side: Side) -> object:
        return [
            len(side.kind(dataset, batch_size=3, drop_last=drop, num_workers=workers))
            for dataset in (datasets.Squares(10), datasets.SizedCounting(10, 10))
            for drop in (False, True)
        ]

    plain_parity.same(code)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: {"dataset": datasets.Identity()},
        lambda: {"dataset": datasets.Identity(), "batch_size": None},
        lambda: {"dataset": datasets.Counting()},
        lambda: {"dataset": datasets.Counting(), "batch_size": 3},
        lambda: {"dataset": datasets.Counting(), "batch_size": None},
        lambda: {"dataset": datasets.Squares(), "sampler": UnsizedSampler()},
        lambda: {"dataset": datasets.Squares(), "sampler": UnsizedSampler(), "batch_size": None},
        lambda: {"dataset": datasets.Squares(), "batch_sampler": iter([[0, 1]])},
        lambda: {"dataset": datasets.Squares(), "sampler": (index for index in range(3))},
    ],
)
def test_an_unknown_length_raises_torchs_error(plain_parity: Parity, arguments: Any) -> None:
    plain_parity.same_refusal(lambda side: len(side.kind(**arguments())))


def test_a_loader_without_a_length_still_iterates(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.Squares(), sampler=UnsizedSampler(), batch_size=2))

    parity.same(code)


def test_a_loader_is_truthy_if_it_has_batches(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        return [
            bool(side.kind(datasets.Squares(n), batch_size=4, drop_last=drop))
            for n in (0, 3, 4)
            for drop in (0 > 1, 1 > 0)
        ]

    plain_parity.same(code)


def test_an_iterator_has_the_length_of_the_loader(parity: Parity) -> None:
    def code(side: Side) -> object:
        iterator: Any = iter(side.loader(datasets.Squares(7), batch_size=2))  # Any: torch types it as private
        before = len(iterator)
        next(iterator)
        return before, len(iterator), list(iterator)

    parity.same(code)


def test_reading_the_length_during_iteration_changes_nothing(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(7), batch_size=2, shuffle=True)
        return [(len(loader), batch) for batch in loader]

    parity.same(code)


# An iterable dataset that delivers more than it reported causes a warning if the length was read.


@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize("was_read", [False, True])
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


def test_an_iterable_as_long_as_reported_does_not_warn(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Sharded(9), batch_size=None)
        len(loader)
        return list(loader)

    assert parity.same(code).warnings == ()


def test_the_warning_comes_again_in_a_second_epoch(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.SizedCounting(4, 3), batch_size=None)
        first = list(loader)
        len(loader)
        return first, list(loader)

    assert parity.same(code).warnings
