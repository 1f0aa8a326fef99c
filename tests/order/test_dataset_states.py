"""What datasets are told of epochs, and what of them is part of a state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader, Loader
from feedline.datasets import mix
from feedline.errors import BadState
from tests.order.facts import flat, values

KINDS = [Loader, DataLoader]


class Telling(Dataset[int]):
    """Samples tell the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_tells_the_dataset_its_epoch_if_the_loader_had(kind: Any) -> None:
    loader = kind(Telling(), 2)
    loader.set_epoch(3)
    next(iter(loader))
    state = loader.state_dict()
    other = kind(Telling(), 2)
    other.load_state_dict(state)
    assert values(other) == [[302, 303], [304, 305]]
    told_again = kind(Telling(), 2)
    told_again.load_state_dict(state)
    told_again.broadcast("set_epoch", 7)
    assert values(told_again) == [[702, 703], [704, 705]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_that_nobody_told_is_not_told_by_a_state(kind: Any) -> None:
    loader = kind(Telling(), 2)
    list(loader)
    next(iter(loader))
    other = kind(Telling(), 2)
    other.load_state_dict(loader.state_dict())
    assert values(other) == [[2, 3], [4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_told_every_epoch_by_the_loader(kind: Any) -> None:
    mixture = mix([list(range(20)), list(range(100, 120))], [0.5, 0.5], size=8)
    loader = kind(mixture, 4)
    came = {value for _ in range(5) for value in flat(loader)}
    assert came == {*range(20), *range(100, 120)}


class Network(torch.nn.Module):
    """Prepares samples with weights that are nobody's place in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_the_weights_of_a_module_are_no_state_of_a_dataset() -> None:
    loader: DataLoader[int] = DataLoader(Network(), 2)
    next(iter(loader))
    assert not loader.state_dict()["streams"]


class Remembering(Dataset[int]):
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_a_dataset_needs_one_that_takes_it(kind: Any) -> None:
    loader = kind(Remembering(), 2)
    next(iter(loader))
    other = kind(list(range(6)), 2)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(BadState, match="has no load_state_dict"):
        next(iter(other))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_state_that_was_loaded_goes_with_a_copy(kind: Any, twin_of: Callable[[Any], Any]) -> None:
    loader = kind(list(range(10)), 2, shuffle=True, seed=3)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), values(batches)
    loader.load_state_dict(state)
    twin = twin_of(loader)
    assert twin.state_dict() == state
    assert values(twin) == rest
    assert values(loader) == rest, "each has its own"
