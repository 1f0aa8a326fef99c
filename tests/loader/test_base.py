"""What both loaders can do with their place in the data."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from feedline import DataLoader, Loader
from feedline.datasets import mix
from feedline.errors import BadOption, BadState
from feedline.loader.base import LoaderBase, run_of

KINDS = [Loader, DataLoader]


class TaskNotes:
    """A dataset, or a sampler, that notes its epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class ToldSampler(TaskNotes):
    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return iter([3, 1, 2, 0])


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_both_loaders_are(kind: Any) -> None:
    assert issubclass(kind, LoaderBase)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_told_to_the_dataset_and_the_sampler_once_each(kind: Any) -> None:
    dataset, sampler = TaskNotes(), ToldSampler()
    kind(dataset, 2, sampler=sampler).set_epoch(4)
    assert (dataset.epochs, sampler.epochs) == ([4], [4])


def test_torchs_batch_sampler_hands_it_on_to_the_sampler_inside() -> None:
    sampler = ToldSampler()
    inside: Any = torch.utils.data.BatchSampler(sampler, 2, False)
    DataLoader(TaskNotes(), batch_sampler=inside).set_epoch(6)  # a dataset by its methods
    assert sampler.epochs == [6]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_that_of_the_epoch(kind: Any) -> None:
    def make() -> Any:
        return kind(list(range(20)), 4, shuffle=True, seed=3)

    loader, other = make(), make()
    epochs = [batches(loader) for _ in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    other.set_epoch(3)
    assert batches(other) == epochs[3]
    other.set_epoch(1)
    assert batches(other) == epochs[1]
    assert batches(other) == epochs[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None, True])
def test_what_is_no_epoch_is_refused(kind: Any, epoch: Any) -> None:
    with pytest.raises(BadOption, match="epoch"):
        kind([1, 2], 2).set_epoch(epoch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_state_before_the_first_batch_is_kept_to(kind: Any, seed: int | None) -> None:
    def make() -> Any:
        return kind(list(range(20)), 4, shuffle=True, seed=seed)

    loader = make()
    state = json.loads(json.dumps(loader.state_dict()))
    assert loader.state_dict() == state, "asking again draws nothing again"
    expected = batches(loader)
    other = make()
    other.load_state_dict(state)
    assert batches(other) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_about_the_iteration_that_was_begun_last(kind: Any) -> None:
    loader = kind(list(range(20)), 4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert loader.state_dict()["order"]["consumed"] == 0
    next(first)
    next(second)
    assert (loader.state_dict()["epoch"], loader.state_dict()["order"]["consumed"]) == (1, 4)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {}], ids=str)
def test_an_epoch_that_is_said_to_be_over_is_followed_by_the_next(options: dict[str, Any]) -> None:
    """Lightning never asks for the batch after the last."""
    loader: Any = DataLoader(range(6), batch_size=2, **options)
    batches = iter(loader)
    run_of(loader).epochs.end_epoch()
    assert not loader.state_dict()["ended"], "nothing of it was asked for"
    for _ in range(3):
        next(batches)
    assert not loader.state_dict()["ended"]
    run_of(loader).epochs.end_epoch()
    state = loader.state_dict()
    resumed: Any = DataLoader(range(6), batch_size=2, **options)
    resumed.load_state_dict(state)
    assert sorted(torch.cat(list(resumed)).tolist()) == list(range(6))
    assert resumed.state_dict()["epoch"] == 1


class Eager:
    """Draws its order when it is asked for an iterator."""

    def __init__(self) -> None:
        self.random = random.Random(4)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(10), 10))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_the_state_beforehand_does_not_change_the_order(kind: Any) -> None:
    plain, asked = (kind(list(range(10)), 2, sampler=Eager()) for _ in range(2))
    asked.state_dict()
    asked.state_dict()
    assert [batches(asked), batches(asked)] == [batches(plain), batches(plain)]


class Telling:
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
    assert batches(other) == [[302, 303], [304, 305]]
    told_again = kind(Telling(), 2)
    told_again.load_state_dict(state)
    told_again.broadcast("set_epoch", 7)
    assert batches(told_again) == [[702, 703], [704, 705]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_that_nobody_told_is_not_told_by_a_state(kind: Any) -> None:
    loader = kind(Telling(), 2)
    list(loader)
    next(iter(loader))
    other = kind(Telling(), 2)
    other.load_state_dict(loader.state_dict())
    assert batches(other) == [[2, 3], [4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_told_every_epoch_by_the_loader(kind: Any) -> None:
    mixture = mix([list(range(20)), list(range(100, 120))], [0.5, 0.5], size=8)
    loader = kind(mixture, 4)
    came = {value for _ in range(5) for value in [index for batch in batches(loader) for index in batch]}
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


class Remembering:
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
def test_a_loop_that_is_under_way_goes_on_when_the_policy_changes(kind: Any, options: dict[str, Any]) -> None:
    loader = kind(Torn(), 2, engine="thread", **options)
    begun = iter(loader)
    first = batches([next(begun)])
    loader.on_error = "skip"
    with pytest.raises(ValueError, match="torn"):
        next(begun)
    assert first + batches(begun) == [[0, 1], [4, 5]]
    assert batches(loader) == [[0, 1], [2], [4, 5]]
    loader.close()


def who(samples: list[int]) -> int:
    return os.getpid()


@pytest.mark.parametrize("kind", KINDS)
def test_a_with_statement_closes_the_loader(kind: Any, engine: str) -> None:
    names = ("workers", "persistent") if kind is Loader else ("num_workers", "persistent_workers")
    options = {} if engine == "inline" else dict(zip(names, (1, True), strict=True))
    with kind(range(8), 2, collate_fn=who, engine=engine, **options) as loader:
        assert type(loader) is kind
        begun = iter(loader)
        first = next(begun)
    assert list(begun) == [], "the loop that was under way is over"
    with loader as same:
        assert same is loader
        again = list(loader)
    assert len(again) == 4
    assert (first in again) == (engine != "process"), "its worker was another one"


def leave_by_an_exception(loader: Any, begun: list[Iterator[Any]]) -> None:
    with loader:
        begun.append(iter(loader))
        next(begun[0])
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_leaves_a_with_statement_and_closes_the_loader(kind: Any, engine: str) -> None:
    workers = "workers" if kind is Loader else "num_workers"
    begun: list[Iterator[Any]] = []
    loader = kind(range(8), 2, engine=engine, **({} if engine == "inline" else {workers: 1}))
    with pytest.raises(ZeroDivisionError):
        leave_by_an_exception(loader, begun)
    assert list(begun[0]) == []


@pytest.mark.parametrize(("kind", "options"), STAYING)
def test_an_iterator_cannot_be_pickled_and_says_so(kind: Any, options: dict[str, Any]) -> None:
    loader = kind(list(range(4)), 2, engine="thread", **options)
    next(iter(loader))
    with pytest.raises(NotImplementedError, match="Pickle the loader"):
        pickle.dumps(loader)
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_state_that_was_loaded_goes_with_a_copy(kind: Any, twin_of: Callable[[Any], Any]) -> None:
    loader = kind(list(range(10)), 2, shuffle=True, seed=3)
    begun = iter(loader)
    next(begun)
    state, rest = loader.state_dict(), batches(begun)
    loader.load_state_dict(state)
    twin = twin_of(loader)
    assert twin.state_dict() == state
    assert batches(twin) == rest
    assert batches(loader) == rest, "each has its own"
