"""Timing the steps of a transform, and restoring them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from feedline.randomness import scope as randomness
from feedline.randomness.scope import Scope
from feedline.workers.transform_timing import timed_steps


class Compose:
    """A transform like torchvision's."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: int) -> int:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Container(Compose):
    """A transform whose steps other code looks at, like those of MONAI and albumentations."""

    def __len__(self) -> int:
        return len(self.transforms)


class Dataset:
    def __init__(self, transform: Any, dataset: Any = None) -> None:
        self.transform = transform
        self.dataset = dataset


def plus_one(sample: int) -> int:
    return sample + 1


def test_the_steps_of_a_transform_are_timed_until_put_back() -> None:
    transform = Compose(plus_one, functools.partial(plus_one), lambda sample: sample + 1)
    before = list(transform.transforms)
    inner = Dataset(transform)
    put_back = timed_steps(Dataset(None, inner))
    assert inner.transform is transform
    scope = Scope()
    before_scope = randomness.enter(scope)
    assert transform(1) == 4
    randomness.enter(before_scope)
    assert scope.stages["transform"] > 0
    put_back()
    assert transform.transforms == before


@pytest.mark.parametrize("transform", [None, plus_one, Container(plus_one), Compose(1), Compose, 3])
def test_transforms_without_steps_are_left_alone(transform: Any) -> None:
    dataset = Dataset(transform)
    steps = list(getattr(transform, "transforms", ()))
    timed_steps(dataset)
    assert dataset.transform is transform
    assert list(getattr(transform, "transforms", ())) == steps


def test_several_threads_may_time_the_same_steps() -> None:
    dataset = Dataset(Compose(plus_one))
    first, second = timed_steps(dataset), timed_steps(dataset)
    first()
    second()
    assert dataset.transform.transforms == [plus_one]


def test_steps_that_the_user_replaced_meanwhile_are_kept() -> None:
    dataset = Dataset(Compose(plus_one))
    put_back = timed_steps(dataset)
    dataset.transform.transforms[:] = [len]
    put_back()
    assert dataset.transform.transforms == [len]


def test_a_property_that_fails_is_left_alone() -> None:
    class Refusing:
        @property
        def transform(self) -> Any:
            raise OSError("the user's code failed")

    timed_steps(Refusing())()
