"""Stages with a name, and transforms that are timed."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from feedline.observe.stages import stage, timed_transforms
from feedline.randomness import scope as randomness
from feedline.randomness.scope import Scope


@pytest.fixture
def scope() -> Iterator[Scope]:
    scope = Scope()
    before = randomness.enter(scope)
    yield scope
    randomness.enter(before)


def test_times_add_up_and_a_stage_inside_of_itself_counts_once(scope: Scope) -> None:
    with stage("decode"):
        pass
    first = scope.stages["decode"]
    assert first > 0
    with stage("decode"), stage("decode"), stage("read"):
        assert scope.stages["decode"] < 0, "it is entered"
    assert scope.stages["decode"] > first
    assert scope.stages["read"] > 0


def test_an_exception_passes_and_the_time_counts(scope: Scope) -> None:
    with pytest.raises(KeyError), stage("decode"):
        raise KeyError
    assert scope.stages["decode"] > 0


def test_a_task_may_end_inside_of_a_stage(scope: Scope) -> None:
    with stage("decode"):
        scope.stages.clear()
    assert scope.stages["decode"] > 0


def test_outside_of_a_loader_nothing_is_measured() -> None:
    with stage("decode"):
        pass


class Compose:
    """A transform as torchvision has them."""

    def __init__(self) -> None:
        self.transforms = [1, 2]

    def __call__(self, sample: int) -> int:
        return sample + 1


class Container(list[Any]):
    """One that is also used as a container."""

    def __call__(self, sample: int) -> int:
        return sample + 1


class Dataset:
    def __init__(self, transform: Any, dataset: Any = None) -> None:
        self.transform = transform
        self.dataset = dataset


def plus_one(sample: int) -> int:
    return sample + 1


@pytest.mark.parametrize("transform", [Compose(), plus_one, functools.partial(plus_one), lambda sample: sample + 1])
def test_a_transform_is_timed_while_it_is_wanted(transform: Any, scope: Scope) -> None:
    inner = Dataset(transform)
    outer = Dataset(None, inner)
    put_back = timed_transforms(outer)
    assert inner.transform(1) == 2
    assert scope.stages["transform"] > 0
    assert isinstance(inner.transform, type(transform)), "whoever looks at it sees the transform"
    put_back()
    assert inner.transform is transform
    assert outer.transform is None


def test_a_timed_transform_has_the_attributes_of_the_transform() -> None:
    transform = Compose()
    dataset = Dataset(transform)
    put_back = timed_transforms(dataset)
    assert dataset.transform.transforms == [1, 2]
    dataset.transform.transforms = [3]
    assert transform.transforms == [3]
    assert type(copy.deepcopy(dataset.transform)) is Compose
    assert type(pickle.loads(pickle.dumps(dataset.transform))) is Compose
    put_back()


@pytest.mark.parametrize("transform", [None, Container([1]), Compose, 3])
def test_what_may_be_more_than_called_is_left_alone(transform: Any) -> None:
    dataset = Dataset(transform)
    timed_transforms(dataset)
    assert dataset.transform is transform


def test_a_property_is_left_alone() -> None:
    class Refusing:
        @property
        def transform(self) -> Any:
            return plus_one

        @transform.setter
        def transform(self, value: Any) -> None:
            raise AssertionError("the user's code was run")

    dataset = Refusing()
    vars(dataset)["transform"] = plus_one
    timed_transforms(dataset)()
    assert dataset.transform is plus_one


def test_a_class_in_the_place_of_a_dataset_is_left_alone() -> None:
    class Inner:
        def transform(self, sample: int) -> int:
            return sample

    before = Inner.transform
    timed_transforms(Dataset(None, Inner))()
    assert Inner.transform is before


def test_a_descriptor_that_shows_something_else_is_left_alone() -> None:
    class Checked:
        def __get__(self, owner: Any, kind: type) -> Any:
            return None if owner is None else vars(owner)["transform"]

        def __set__(self, owner: Any, value: Any) -> None:
            raise AssertionError("the user's code was run")

    class Checking:
        transform = Checked()

    dataset = Checking()
    vars(dataset)["transform"] = plus_one
    timed_transforms(dataset)()
    assert dataset.transform is plus_one


def test_what_was_replaced_meanwhile_stays_so() -> None:
    dataset = Dataset(plus_one)
    put_back = timed_transforms(dataset)
    dataset.transform = len
    put_back()
    assert dataset.transform is len
