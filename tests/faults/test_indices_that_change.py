"""Datasets whose indices mean other samples in each epoch: what failed in one epoch costs no sample of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data

import feedline
from tests.faults.deaths import Once
from tests.faults.loaders import Numbers, batches_of, everywhere, indices_of, make, on

SIZE = 24


class Remapped(Numbers):
    """A user's dataset that puts its samples into another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__((index * 7 + self.epoch * 5) % self.count)


def numbers() -> Numbers:
    return Numbers(SIZE, {3, 17})


DATASETS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: feedline.pipe(numbers()).shuffle(seed=1),
    "window_shuffle": lambda: feedline.pipe(numbers()).window_shuffle(8, seed=1),
    "mix": lambda: feedline.pipe(numbers()).mix(range(100, 110), seed=1),
    "shuffle before map": lambda: feedline.pipe(numbers()).shuffle(seed=1).map(int),
    "feedline.datasets.mix": lambda: feedline.datasets.mix([numbers(), range(100, 110)], seed=1),
    "a user's set_epoch": lambda: Remapped(SIZE, {3, 17}),
}
every_dataset = pytest.mark.parametrize("name", DATASETS)


def epochs_of(loader: Any, numbers: range) -> Iterator[list[Any]]:
    for epoch in numbers:
        loader.set_epoch(epoch)
        yield batches_of(loader)


@every_dataset
@pytest.mark.parametrize(("engine", "policy"), [("inline", "replace"), ("thread", "skip")])
def test_each_epoch_has_the_samples_that_a_fresh_loader_delivers(engine: str, name: str, policy: str) -> None:
    def loader() -> Any:
        return make("Loader", DATASETS[name](), on_error=policy, **on(engine))

    for epoch, batches in enumerate(epochs_of(loader(), range(4))):
        assert batches == next(epochs_of(loader(), range(epoch, epoch + 1)))


class Wrapper:
    """A user's dataset around another, without a `set_epoch`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "Subset": lambda dataset: torch.utils.data.Subset(dataset, range(SIZE)),
    "a user's wrapper": lambda dataset: Wrapper(Wrapper(dataset)),
    "ConcatDataset": lambda dataset: torch.utils.data.ConcatDataset([dataset]),
    "a pipe": lambda dataset: feedline.pipe(Wrapper(dataset)).map(int),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_dataset_that_changes_may_lie_inside_another(name: str) -> None:
    inside = Remapped(SIZE, {3, 17})
    loader = make("DataLoader", WRAPPERS[name](inside), on_error="skip")
    for epoch in range(4):
        inside.set_epoch(epoch)
        assert sorted(chain(*batches_of(loader))) == [number for number in range(SIZE) if number not in (3, 17)]


class Counting(Numbers):
    def __init__(self, once: Once) -> None:
        super().__init__(SIZE, {3})
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            self.once.times(index)
        return super().__getitem__(index)


class Reshuffled(torch.utils.data.Sampler[int]):
    """A user's sampler with another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng(self.epoch).permutation(SIZE).tolist()


@everywhere
def test_a_sampler_may_reshuffle_since_its_indices_mean_the_same_samples(
    loader_kind: str, engine: str, tmp_path: Path
) -> None:
    once = Once(tmp_path)
    loader = make(loader_kind, Counting(once), sampler=Reshuffled(), on_error="skip", **on(engine))
    for batches in epochs_of(loader, range(4)):
        assert sorted(chain(*batches)) == [number for number in range(SIZE) if number != 3]
    assert once.count(3) == 1
    assert indices_of(loader.faults) == [3]


def test_a_pipe_that_keeps_its_order_keeps_its_quarantine(tmp_path: Path) -> None:
    once = Once(tmp_path)
    cached = feedline.datasets.CachedDataset(Counting(once), memory="1MB")
    for dataset in (feedline.pipe(Counting(once)).map(int), cached, feedline.pipe(cached).map(int)):
        loader = make("Loader", dataset, on_error="skip")
        assert sum(map(len, batches_of(loader))) == SIZE - 1
        before = once.count(3)
        for _ in range(2):
            assert sum(map(len, batches_of(loader))) == SIZE - 1
        assert once.count(3) == before
