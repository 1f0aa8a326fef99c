"""Epochs, states and closing, for both loaders."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from feedline import DataLoader, Loader
from feedline.errors import BadOption, BadState, StateWarning
from feedline.loader.base import session_of

KINDS = [Loader, DataLoader]


class EpochNotes:
    """A dataset, or a sampler, that notes the epochs that were set."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class EpochNotingSampler(EpochNotes):
    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return iter([3, 1, 2, 0])


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_set_epoch_is_passed_once_to_dataset_and_sampler(kind: Any) -> None:
    dataset, sampler = EpochNotes(), EpochNotingSampler()
    kind(dataset, 2, sampler=sampler).set_epoch(4)
    assert (dataset.epochs, sampler.epochs) == ([4], [4])


@pytest.mark.parametrize(("kind", "epoch"), [(Loader, -1), (Loader, True), (DataLoader, 1.5), (DataLoader, "2")])
def test_rejects_invalid_epochs(kind: Any, epoch: Any) -> None:
    with pytest.raises(BadOption, match="epoch"):
        kind([1, 2], 2).set_epoch(epoch)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_an_empty_state_changes_nothing(kind: Any) -> None:
    """As in torchdata, {} stands for no state."""
    loader = kind([1, 2, 3], 2)
    assert len(list(loader)) == 2
    with pytest.warns(StateWarning, match="empty"):
        loader.load_state_dict({})
    next(iter(loader))
    assert loader.state_dict()["epoch"] == 1
    loader.load_state_dict(loader.state_dict())
    with pytest.warns(StateWarning, match="it changes nothing"):
        loader.load_state_dict({})
    assert batches(loader) == [[3]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_is_no_state(kind: Any) -> None:
    with pytest.raises(BadState, match="not ndarray"):
        kind([1, 2, 3], 2).load_state_dict(np.zeros(2))


@pytest.mark.parametrize(("kind", "batch_size"), [(Loader, None), (DataLoader, 5)])
def test_setting_the_epoch_of_a_copy_leaves_the_loader_alone(kind: Any, batch_size: int | None) -> None:
    def loader() -> Any:
        return kind(list(range(10)), batch_size, shuffle=True, seed=1)

    whole, first = loader(), loader()
    epochs = [list(map(str, whole)) for _ in range(7)]
    twin = copy.copy(first)
    assert list(map(str, first)) == epochs[0]
    twin.set_epoch(5)
    if kind is DataLoader:  # other code that iterates over it
        assert list(map(int, twin.sampler)) != list(map(int, first.sampler))
    assert list(map(str, first)) == epochs[1]
    assert list(map(str, copy.copy(twin))) == list(map(str, twin)) == epochs[5]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 1}], ids=str)
def test_the_next_epoch_follows_after_end_epoch(options: dict[str, Any]) -> None:
    """Lightning never requests a batch after the last one."""
    loader: Any = DataLoader(range(6), batch_size=2, **options)
    batches = iter(loader)
    session_of(loader).epochs.end_epoch()
    assert not loader.state_dict()["ended"], "no batch was requested"
    for _ in range(3):
        next(batches)
    assert not loader.state_dict()["ended"]
    session_of(loader).epochs.end_epoch()
    state = loader.state_dict()
    resumed: Any = DataLoader(range(6), batch_size=2, **options)
    resumed.load_state_dict(state)
    assert sorted(torch.cat(list(resumed)).tolist()) == list(range(6))
    assert resumed.state_dict()["epoch"] == 1


class EpochInSamples:
    """Samples contain the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_sets_the_epoch_of_the_dataset_if_the_loader_had(kind: Any) -> None:
    loader = kind(EpochInSamples(), 2)
    loader.set_epoch(3)
    next(iter(loader))
    state = loader.state_dict()
    other = kind(EpochInSamples(), 2)
    other.load_state_dict(state)
    assert batches(other) == [[302, 303], [304, 305]]
    epoch_set_again = kind(EpochInSamples(), 2)
    epoch_set_again.load_state_dict(state)
    epoch_set_again.broadcast("set_epoch", 7)
    assert batches(epoch_set_again) == [[702, 703], [704, 705]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_sets_no_epoch_if_the_loader_had_not(kind: Any) -> None:
    loader = kind(EpochInSamples(), 2)
    list(loader)
    next(iter(loader))
    other = kind(EpochInSamples(), 2)
    other.load_state_dict(loader.state_dict())
    assert batches(other) == [[2, 3], [4, 5]]


class Network(torch.nn.Module):
    """A dataset that is a module; its weights are not a position in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_weights_of_a_module_are_not_saved_as_state_of_the_dataset() -> None:
    loader: DataLoader[int] = DataLoader(Network(), 2)
    next(iter(loader))
    assert not loader.state_dict()["streams"]


class Torn:
    """One of its samples cannot be read."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise ValueError("torn")
        return index


STAYING = [(Loader, {"workers": 1, "persistent": True}), (DataLoader, {"num_workers": 1, "persistent_workers": True})]


@pytest.mark.parametrize(("kind", "options"), STAYING)
def test_a_changed_error_policy_applies_from_the_next_epoch(kind: Any, options: dict[str, Any]) -> None:
    loader = kind(Torn(), 2, engine="thread", **options)
    iterator = iter(loader)
    first = batches([next(iterator)])
    loader.on_error = "skip"
    with pytest.raises(ValueError, match="torn"):
        next(iterator)
    assert first + batches(iterator) == [[0, 1], [4, 5]]
    assert batches(loader) == [[0, 1], [2], [4, 5]]
    loader.close()


def who(samples: list[int]) -> int:
    return os.getpid()


@pytest.mark.parametrize(("kind", "engine"), [(Loader, "inline"), (Loader, "process"), (DataLoader, "thread")])
def test_a_with_statement_closes_the_loader(kind: Any, engine: str) -> None:
    names = ("workers", "persistent") if kind is Loader else ("num_workers", "persistent_workers")
    options = {} if engine == "inline" else dict(zip(names, (1, True), strict=True))
    with kind(range(8), 2, collate_fn=who, engine=engine, **options) as loader:
        assert type(loader) is kind
        iterator = iter(loader)
        first = next(iterator)
    assert list(iterator) == [], "the running loop is over"
    with loader as same:
        assert same is loader
        again = list(loader)
    assert len(again) == 4
    assert (first in again) == (engine != "process"), "the worker is a new one"


@pytest.mark.parametrize(("kind", "options"), STAYING)
def test_pickling_an_iterator_is_an_error_with_advice(kind: Any, options: dict[str, Any]) -> None:
    loader = kind(list(range(4)), 2, engine="thread", **options)
    next(iter(loader))
    with pytest.raises(NotImplementedError, match="Pickle the loader"):
        pickle.dumps(loader)
    loader.close()


@pytest.mark.parametrize(
    ("kind", "twin_of"),
    [
        (Loader, copy.copy),
        (DataLoader, copy.deepcopy),
        (Loader, lambda loader: pickle.loads(pickle.dumps(loader))),
        (DataLoader, lambda loader: pickle.loads(pickle.dumps(loader))),
    ],
)
def test_a_copy_keeps_a_loaded_state(kind: Any, twin_of: Callable[[Any], Any]) -> None:
    loader = kind(list(range(10)), 2, shuffle=True, seed=3)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), batches(iterator)
    loader.load_state_dict(state)
    twin = twin_of(loader)
    assert twin.state_dict() == state
    assert batches(twin) == rest
    assert batches(loader) == rest, "each has its own state"


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"num_workers": 1}])
def test_a_state_needs_no_length_before_the_first_iteration(options: Any) -> None:
    dataset: Any = NoLength()
    loader: Any = DataLoader(dataset, **options)
    state = loader.state_dict()  # as frameworks do when they unpickle a loader, with a class in place of the dataset
    with pytest.raises(TypeError, match=r"no len\(\)"):
        list(loader)
    with pytest.raises(BadState, match="size=None"):
        DataLoader(range(3), **options).load_state_dict(state)


def test_iterators_count_as_torchs() -> None:
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    assert isinstance(iter(DataLoader(range(2))), base)  # Lightning pickles all other iterators
    assert isinstance(iter(DataLoader(range(2), num_workers=1, engine="thread")), base)
