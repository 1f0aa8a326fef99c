"""Streams that split themselves over ranks: samples draw different numbers, and shared shuffles the same."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline import Loader
from feedline.abc import ShardedSource
from feedline.datasets import TarDataset
from feedline.system.ranks import share_if_known
from feedline.types import EngineName
from tests.datasets.formats.tar.writing import write_shards

COUNT = 48
RANKS = 2

# Any, throughout: datasets and loaders.
Sample = tuple[int, float, float]
"""The number of a sample, and what it drew from its own generator and from the global ones."""


def drawn(number: Any) -> Sample:
    return int(number), feedline.rng().random(), random.random() + float(np.random.rand()) + torch.rand(()).item()


class Lines(ShardedSource):
    """A custom source whose iterator makes one sample after the other."""

    part = (0, 1)

    def set_worker(self, number: int, count: int) -> None:
        self.part = (number, count)

    def __iter__(self) -> Iterator[Sample]:
        share, (worker, workers) = share_if_known(), self.part
        numbers = range(COUNT)[worker * share.world_size + share.rank :: workers * share.world_size]
        return map(drawn, numbers)


class Shuffled(torch.utils.data.IterableDataset[Sample]):
    """A generator that shuffles with a global generator or with feedline's, then takes its rank's part."""

    def __init__(self, shuffle: Callable[[list[int]], None]) -> None:
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[Sample]:
        share, numbers = share_if_known(), list(range(COUNT))
        self.shuffle(numbers)
        for number in numbers[share.rank :: share.world_size]:
            yield drawn(number)


def with_random(numbers: list[int]) -> None:
    random.shuffle(numbers)


def with_rng(numbers: list[int]) -> None:
    feedline.rng().shuffle(numbers)


def as_they_are(samples: list[Sample]) -> list[Sample]:
    return samples


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"), [COUNT // 8] * 8)


def make(kind: str, shards: list[str]) -> Any:
    if kind == "tar":
        stream: Any = TarDataset(shards, "cls").stream(shuffle=True, buffer=8, seed=2)
        stream.transform = drawn
        return stream
    if kind == "split source":
        return Lines()
    shuffle = with_rng if "rng" in kind else with_random
    return Shuffled(shuffle)


class Ranks:
    """Loaders of ranks that run one after the other in this process; the environment says which is current."""

    def __init__(self, dataset: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
        self.dataset = dataset
        self.patch = patch

    def loader(self, rank: int, ranks: int = RANKS, workers: int = 0, collate: Any = as_they_are) -> Any:
        self.patch.setenv("RANK", str(rank))
        self.patch.setenv("WORLD_SIZE", str(ranks))
        engine: EngineName = "process" if workers else "inline"
        return Loader(self.dataset(), 3, seed=7, shard=False, workers=workers, engine=engine, collate_fn=collate)

    def epoch(self, rank: int, **options: int) -> list[Sample]:
        with closing(self.loader(rank, **options)) as loader:
            return list(itertools.chain(*loader))


@pytest.mark.parametrize(
    ("kind", "workers"), [("tar", 2), ("split source", 0), ("generator", 0), ("generator, rng", 2)]
)
def test_ranks_draw_different_numbers(
    kind: str, workers: int, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(lambda: make(kind, shards), monkeypatch)
    mine, theirs = (ranks.epoch(rank, workers=workers) for rank in range(RANKS))
    common = [0, 0]
    for one, other in zip(mine, theirs, strict=True):
        common[0] += one[1] == other[1]
        common[1] += one[2] == other[2]
    # A generator starts with its first sample.
    opening = max(1, workers) if kind.startswith("generator") else 0
    assert common == [opening, opening]
    if workers == 0 or kind in ("tar", "split source"):
        assert sorted(number for number, *_ in mine + theirs) == list(range(COUNT))


def test_no_number_is_drawn_twice_with_another_number_of_ranks(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(lambda: make("tar", shards), monkeypatch)
    found: list[Sample] = []
    states = []
    for rank in range(3):
        with closing(ranks.loader(rank, 3)) as loader:
            found += itertools.chain(*itertools.islice(loader, 2 + rank))
            states.append(loader.state_dict())
    for rank in range(2):
        with closing(ranks.loader(rank, 2)) as loader:
            loader.load_state_dict(feedline.merge_states(states))
            found += itertools.chain(*loader)
    assert sorted(number for number, *_ in found) == list(range(COUNT))
    assert len({draw for _, draw, _ in found}) == len({draw for *_, draw in found}) == COUNT
