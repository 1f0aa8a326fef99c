"""What goes wrong costs its own batch and no other; the iteration and its state go on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from feedline import DataLoader, Loader
from feedline.errors import RepeatedSamples
from feedline.types import EngineName
from tests.order.facts import values

KINDS = [Loader, DataLoader]


class Interrupted(Dataset[int]):
    """Somebody presses Ctrl-C while sample 5 is made, once."""

    def __init__(self) -> None:
        self.is_due = True

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 5 and self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return index


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_loses_no_batch(kind: Any) -> None:
    loader = kind(Interrupted(), 2)
    batches = iter(loader)
    assert values(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    other = kind(list(range(10)), 2)
    other.load_state_dict(loader.state_dict())
    assert values(other) == [[4, 5], [6, 7], [8, 9]]
    assert values(batches) == [[4, 5], [6, 7], [8, 9]]


class Spoilt(IterableDataset[int]):
    """Sample 5 cannot be made; those after it can."""

    def __iter__(self) -> Iterator[int]:
        return map(self.make, range(12))

    def make(self, number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number


def survivors(batches: Iterator[Any]) -> tuple[list[Any], int]:
    """Return the batches that come, and how often something was raised instead."""
    came, failures = [], 0
    while True:
        try:
            came.append(next(batches).tolist())
        except StopIteration:
            return came, failures
        except ValueError:
            failures += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_of_a_stream_that_is_shared_out_costs_its_own_batch(workers: int) -> None:
    loader = DataLoader(Spoilt(), 2, shard=True, num_workers=workers, engine="thread" if workers else "auto")
    assert survivors(iter(loader)) == ([[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]], 1)


@pytest.mark.parametrize("shard", [True, False])
def test_a_stream_that_is_read_again_gets_over_a_sample_that_raised(shard: bool) -> None:
    loader = DataLoader(Spoilt(), 2, shard=shard)
    batches = iter(loader)
    assert values(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="five"):
        next(batches)
    state = loader.state_dict()
    other = DataLoader(Spoilt(), 2, shard=shard)
    other.load_state_dict(state)
    assert survivors(iter(other)) == ([[6, 7], [8, 9], [10, 11]], 0)


class Repeating(IterableDataset[torch.Tensor]):
    """Every worker delivers all of it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((1000,), float(number)) for number in range(6))


def test_a_warning_made_an_error_costs_one_batch_and_no_slot() -> None:
    loader = DataLoader(Repeating(), 2, num_workers=2, prefetch_factor=1, timeout=30, persistent_workers=True)
    batches = iter(loader)
    came = raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while True:
            try:
                next(batches)
                came += 1
            except StopIteration:
                break
            except RepeatedSamples:
                raised += 1
    assert (came, raised) == (5, 1)
    arena = loader._resources._arena
    if arena is not None:
        assert len(arena._warm) + len(arena._cold) == len(arena._slots), "every slot that was ever taken is back"
    loader.close()


class Unreliable(IterableDataset[int]):
    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        if self.epochs == 2:
            raise ConnectionError("store away")
        return iter(range(100 * self.epochs, 100 * self.epochs + 6))


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_an_epoch_that_fails_to_begin_delivers_nothing_of_the_last_one(engine: EngineName) -> None:
    loader = DataLoader(Unreliable(), 1, num_workers=1, persistent_workers=True, engine=engine)
    assert next(iter(loader)).item() == 100
    iterator = iter(loader)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="store away"):
            next(iterator)
    assert [batch.item() for batch in loader] == [300, 301, 302, 303, 304, 305]
    loader.close()
