"""Loaders whose ranks or epochs all deliver the same samples warn once, unless that is intended."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

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

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.errors import DataWarning
from feedline.loader.base import run_of
from feedline.loader.rebuilding import REBUILDING
from feedline.order.rank_watch import RankWatch

pytestmark = pytest.mark.sample(10)

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


class RankStream(IterableDataset[int]):
    """Reads its rank in `iter`."""

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
    "seed": (lambda: DataLoader(DATA, 4, shuffle=True, seed=1), "DistributedSampler(dataset, shuffle=True)"),
    "sampler": (
        lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 16, 16)),
        "sampler=feedline.samplers.distribute(sampler).",
    ),
    "batches": (
        lambda: DataLoader(DATA, batch_sampler=PLAIN),
        "batch_sampler=feedline.samplers.distribute(batch_sampler).",
    ),
    "subset": (lambda: DataLoader(Subset(DATA, range(12)), 4), "DistributedSampler(dataset, shuffle=False)."),
    "Loader": (lambda: Loader(DATA, 4, shuffle=True), "DistributedSampler(dataset, shuffle=True) in place of"),
    "Loader, batches": (lambda: Loader(DATA, batch_sampler=list(PLAIN)), "batch_sampler=feedline.samplers.distribute"),
}

MEANT: dict[str, Callable[[], Any]] = {
    "distributed": lambda: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, RANKS, 1, shuffle=False)),
    "our own": lambda: DataLoader(DATA, 4, sampler=samplers.DistributedSampler(DATA)),
    "distribute": lambda: DataLoader(DATA, 4, sampler=samplers.distribute(RandomSampler(DATA))),
    "batches of a distributed sampler": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(DistributedSampler(DATA, RANKS, 1, shuffle=False), 2, drop_last=False)
    ),
    "distributed batches": lambda: DataLoader(DATA, batch_sampler=cast(Any, samplers.distribute(PLAIN))),
    "batches of others": lambda: DataLoader(DATA, batch_sampler=RankBatches(RANKS)),
    "a sampler with world size 1": lambda: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 1, 0, shuffle=False)),
    "a dataset with a rank": lambda: DataLoader(RankFiles(1), 4),
    "inside another": lambda: DataLoader(Subset(RankFiles(1), range(16)), 4),
    "a stream that asks for its rank": lambda: DataLoader(RankStream(), 4),
    "a stream that may ask for its rank": lambda: DataLoader(Stream(), 4),
    "a sampler that asks for its rank": lambda: DataLoader(DATA, 4, sampler=RankIndices()),
    "shard": lambda: DataLoader(Stream(), 4, shard=True),
    "not to be shared out": lambda: DataLoader(Stream(), 4, shard=False),
    "a part": lambda: DataLoader(Subset(DATA, range(1, 16, RANKS)), 2),
    "indices of a part": lambda: DataLoader(DATA, 2, sampler=range(1, 16, RANKS)),
    "Loader": lambda: Loader(DATA, 4, sampler=samplers.DistributedSampler(DATA)),
    "Loader, stream": lambda: Loader(Stream(), 4),
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


@pytest.mark.parametrize("case", REPEATED)
def test_a_single_rank_does_not_warn(case: str) -> None:
    assert warning_texts(REPEATED[case][0]()) == []


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", MEANT)
def test_sharded_and_intended_cases_do_not_warn(case: str) -> None:
    assert warning_texts(MEANT[case]()) == []


@pytest.mark.usefixtures("ranks")
def test_virtual_epochs_do_not_warn_since_they_shard_themselves() -> None:
    loader = DataLoader(DATA, 4, shuffle=True, seed=1)
    assert warning_texts(next(iter(loader.virtual_epochs(1))), 1) == []


@pytest.mark.usefixtures("ranks")
def test_the_warning_about_hugging_face_streams_says_how_to_split_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.order.rank_watch.ranks_of_stream", lambda dataset: 1)
    stream = Stream()
    stream._distributed = None  # type: ignore[attr-defined]  # as Hugging Face's have
    (text,) = warning_texts(DataLoader(stream, 4))
    assert "split_dataset_by_node(dataset, rank, world_size)" in text


@pytest.mark.usefixtures("ranks")
def test_feedlines_own_reads_do_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feedline.precompute([1.0, 2.0], tmp_path / "stored", progress=False)
        feedline.pack([{"x": 1.0}, {"x": 2.0}], tmp_path / "packed.tar", workers=0)


@pytest.mark.usefixtures("ranks")
def test_the_warning_turned_into_an_error_is_raised_before_anything_is_read() -> None:
    loader = DataLoader(DATA, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        with pytest.raises(DataWarning):
            iter(loader)
        assert len(list(loader)) == 4, "it is raised once"


# -- epochs with the same order ---


def distributed(**options: Any) -> Any:
    return DistributedSampler(DATA, 2, 0, **options)


@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_a_missing_set_epoch_warns_in_the_second_epoch(kind: Any) -> None:
    loader = kind(DATA, 4, sampler=distributed())
    assert warning_texts(loader, 1) == []
    (text,) = warning_texts(loader, 2)
    assert "the DistributedSampler is still in epoch 0. Call loader.set_epoch(epoch)" in text


def test_a_missing_set_epoch_warns_with_persistent_workers_too() -> None:
    loader = DataLoader(DATA, 4, sampler=distributed(), num_workers=1, persistent_workers=True)
    assert len(warning_texts(loader)) == 1
    loader.close()


class SelfCounting(DistributedSampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        return iter(order[::-1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, 4, sampler=distributed(shuffle=False)),
        lambda: DataLoader(DATA, 4, sampler=SelfCounting(DATA, 2, 0)),
        lambda: DataLoader(DATA, 4, sampler=samplers.DistributedSampler(DATA, 2, 0)),
    ],
    ids=["in order", "of others", "our own"],
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


def test_reading_only_the_first_batch_does_not_count_as_an_epoch() -> None:
    loader = DataLoader(DATA, 4, sampler=distributed())
    next(iter(loader))
    assert warning_texts(loader, 1) == []


def test_a_finished_watch_does_not_warn() -> None:
    watch = RankWatch(is_over=True)
    loader = DataLoader(DATA, 4, sampler=distributed())
    run_of(loader).rank_watch = watch
    assert warning_texts(loader) == []
