"""Loaders whose ranks or epochs all deliver the same samples warn once, unless that is intended."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from feedline import DataLoader, Loader, samplers
from feedline.errors import DataWarning
from feedline.loader.rebuilding import TorchRebuilding

REBUILDING = TorchRebuilding(DataLoader)
DATA: Any = list(range(16))
RANKS = 4


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))


def warning_texts(loader: Any, epochs: int = 3) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            list(loader)
    found = [warning for warning in caught if issubclass(warning.category, DataWarning)]
    assert {warning.filename for warning in found} <= {__file__}
    return [str(warning.message) for warning in found]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(16))


class RankIndices:
    """A custom sampler that reads its rank in `iter`."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(int(os.environ["RANK"]), 16, RANKS))


class RankFiles(Dataset[int]):
    """Gets its rank in its constructor."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index


class RankBatches:
    """A custom batch sampler for one rank."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1, 5], [9, 13]])


PLAIN = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)

REPEATED: dict[str, tuple[Callable[[], Any], str]] = {
    "in order": (lambda: DataLoader(DATA, 4), "sampler=feedline.samplers.DistributedSampler(dataset, shuffle=False)."),
    "shuffle": (
        lambda: DataLoader(DATA, 4, shuffle=True),
        "sampler=feedline.samplers.DistributedSampler(dataset, shuffle=True) in place of shuffle=True.",
    ),
    "sampler": (
        lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 16, 16)),
        "sampler=feedline.samplers.distribute(sampler).",
    ),
    "batches": (
        lambda: DataLoader(DATA, batch_sampler=PLAIN),
        "batch_sampler=feedline.samplers.distribute(batch_sampler).",
    ),
    "Loader": (lambda: Loader(DATA, 4, shuffle=True), "DistributedSampler(dataset, shuffle=True) in place of"),
}

MEANT: dict[str, Callable[[], Any]] = {
    "distributed": lambda: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, RANKS, 1, shuffle=False)),
    "distribute": lambda: DataLoader(DATA, 4, sampler=samplers.distribute(RandomSampler(DATA))),
    "batches of others": lambda: DataLoader(DATA, batch_sampler=RankBatches(RANKS)),
    "a dataset with a rank": lambda: DataLoader(RankFiles(1), 4),
    "a stream that may ask for its rank": lambda: DataLoader(Stream(), 4),
    "a sampler that asks for its rank": lambda: DataLoader(DATA, 4, sampler=RankIndices()),
    "shard": lambda: DataLoader(Stream(), 4, shard=True),
    "a part": lambda: DataLoader(Subset(DATA, range(1, 16, RANKS)), 2),
    "rebuilt by a framework": lambda: REBUILDING.with_torch_parts(
        DataLoader(DATA, 4), torch.utils.data.DataLoader(DATA, 2)
    ),
}


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", REPEATED)
def test_ranks_that_all_deliver_everything_warn_once_with_a_fix(case: str) -> None:
    make, line = REPEATED[case]
    (text,) = warning_texts(make())
    assert "Each of the 4 ranks delivers the whole dataset" in text
    assert line in text


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", MEANT)
def test_sharded_and_intended_cases_do_not_warn(case: str) -> None:
    assert warning_texts(MEANT[case]()) == []


# -- epochs with the same order ---


def distributed(**options: Any) -> Any:
    return DistributedSampler(DATA, 2, 0, **options)


@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_a_missing_set_epoch_warns_in_the_second_epoch(kind: Any) -> None:
    loader = kind(DATA, 4, sampler=distributed())
    assert warning_texts(loader, 1) == []
    (text,) = warning_texts(loader, 2)
    assert "the DistributedSampler is still in epoch 0. Call loader.set_epoch(epoch)" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, 4, sampler=distributed(shuffle=False)),
        lambda: DataLoader(DATA, 4, sampler=samplers.DistributedSampler(DATA, 2, 0)),
    ],
    ids=["in order", "our own"],
)
def test_orders_that_do_not_depend_on_set_epoch_do_not_warn(make: Callable[[], Any]) -> None:
    assert warning_texts(make()) == []


@pytest.mark.parametrize("when", ["before", "by the sampler", "late"])
def test_calling_set_epoch_avoids_the_warning(when: str) -> None:
    sampler = distributed()
    loader = DataLoader(DATA, 4, sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            if when == "before":
                loader.set_epoch(epoch)
            elif when == "by the sampler":
                sampler.set_epoch(epoch)
            batches = iter(loader)
            if when == "late":
                loader.set_epoch(epoch)
            list(batches)
