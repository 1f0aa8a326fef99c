"""Streams that the loader shares out: every worker reads the same, and a rank knows its length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from feedline import DataLoader, Loader
from feedline.errors import UnequalStreams
from tests.order.facts import flat

KINDS = [Loader, DataLoader]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return become


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        numbers = list(range(40))
        random.shuffle(numbers)
        return iter(numbers)


def test_a_stream_that_shuffles_itself_is_the_same_in_every_worker() -> None:
    loader = DataLoader(Shuffled(), 4, shard=True, num_workers=2)
    assert sorted(flat(loader)) == list(range(40))


class Own(IterableDataset[float]):
    """Its numbers are other ones wherever it is iterated over."""

    def __iter__(self) -> Iterator[float]:
        return iter(np.random.default_rng().random(12).tolist())


def test_workers_that_read_something_else_are_noticed() -> None:
    loader = DataLoader(Own(), 2, shard=True, num_workers=2, engine="thread")
    with pytest.warns(UnequalStreams, match=r"feedline\.rng\(\)"):
        list(loader)


class Sized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(21))

    def __len__(self) -> int:
        return 21


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_the_length_of_a_shared_stream_is_this_ranks(kind: Any, tail: str, ranks: Callable[[int, int], None]) -> None:
    for rank in range(3):
        ranks(rank, 3)
        loader = kind(Sized(), 2, shard=tail)
        assert len(loader) == len(list(loader)) < 11
