"""The random numbers of the sample that is currently being made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.randomness.scope import Scope, enter, rng
from feedline.types import Draw


@pytest.fixture
def scope() -> Iterator[Scope]:
    """A scope that has been entered, at the first sample of a batch."""
    scope = Scope()
    scope.begin(Draw(7))
    before = enter(scope)
    yield scope
    enter(before)


def draw_at(scope: Scope, place: int) -> float:
    scope.place = place
    return float(rng().random())


# -- one stream of numbers per sample ---


def test_every_sample_has_its_own_numbers(scope: Scope) -> None:
    drawn = [draw_at(scope, place) for place in range(1000)]
    scope.collate()
    drawn.append(rng().random())
    assert len(set(drawn)) == 1001


def test_calls_for_one_sample_continue_its_numbers(scope: Scope) -> None:
    assert len({float(rng().random()) for _ in range(3)}) == 3


def test_what_a_sample_draws_does_not_depend_on_order_or_neighbours(scope: Scope) -> None:
    forwards = [draw_at(scope, place) for place in range(10)]
    scope.begin(Draw(7))
    assert [draw_at(scope, place) for place in reversed(range(10))] == forwards[::-1]
    scope.begin(Draw(7))
    draw_at(scope, 3)
    rng().random(1000)  # a neighbour that draws much
    assert draw_at(scope, 4) == forwards[4]


def test_numbers_of_32_bits_do_not_leak_from_one_sample_to_the_next(scope: Scope) -> None:
    """PCG64 buffers half of a 64-bit number for the next one of 32 bits."""

    def draw(place: int) -> int:
        scope.place = place
        return int(rng().integers(1 << 32, dtype=np.uint32))

    drawn = draw(1)
    scope.begin(Draw(7))
    assert draw(0) != drawn
    assert draw(1) == drawn


# -- collating ---


def test_collating_draws_other_numbers_than_samples_and_other_batches() -> None:
    drawn = set()
    for first in range(0, 40, 4):
        scope = Scope()
        scope.begin(Draw(7, first))
        for scope.place in range(4):
            drawn.add(scope.key())
        scope.collate()
        drawn.add(scope.key())
    assert len(drawn) == 50


# -- outside loaders, and nested loaders ---


def test_outside_loaders_rng_is_an_ordinary_generator() -> None:
    generator = rng()
    assert rng() is generator
    assert feedline.rng() is generator
    assert generator.random() != rng().random()


class Nested:
    """A dataset whose samples come from another loader."""

    def __init__(self, inner_seed: int | None) -> None:
        self.inner_seed = inner_seed

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        first = feedline.rng().random()
        if self.inner_seed is not None:
            list(feedline.Loader(Draws(), 2, seed=self.inner_seed))
        return first + feedline.rng().random()


class Draws:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return feedline.rng().random() + random.random() + np.random.rand()


def test_what_a_sample_draws_does_not_depend_on_nested_loaders() -> None:
    def batches(inner_seed: int | None) -> list[Any]:
        return [batch.tolist() for batch in feedline.Loader(Nested(inner_seed), 2, seed=3)]

    assert batches(None) == batches(1) == batches(2)
