"""The random numbers of the sample that is currently being made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.randomness.global_states import seed_globals
from feedline.randomness.scope import Scope, enter, rng
from feedline.types import Draw

keys = st.integers(0, 2**64 - 1)


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


def test_what_a_sample_draws_does_not_depend_on_order_or_neighbours(scope: Scope) -> None:
    forwards = [draw_at(scope, place) for place in range(10)]
    scope.begin(Draw(7))
    assert [draw_at(scope, place) for place in reversed(range(10))] == forwards[::-1]
    scope.begin(Draw(7))
    draw_at(scope, 3)
    rng().random(1000)  # a neighbour that draws much
    assert draw_at(scope, 4) == forwards[4]


@given(keys, st.integers(0, 2**40), st.integers(1, 64), st.integers(0, 20))
def test_the_key_of_a_sample_is_that_of_its_place_in_the_order(key: int, first: int, stride: int, number: int) -> None:
    part, whole = Scope(), Scope()
    part.begin(Draw(key, first, stride))
    part.place = number
    whole.begin(Draw(key))
    whole.place = first + stride * number
    assert part.key() == whole.key()


def test_a_kept_generator_is_never_reseeded(scope: Scope) -> None:
    scope.place = 0
    kept = rng()
    untouched = kept.bit_generator.state
    expected = np.random.Generator(np.random.PCG64(0))
    expected.bit_generator.state = untouched
    for place in range(1, 5):
        draw_at(scope, place)
    assert rng() is not kept
    assert kept.random() == expected.random()


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


def test_a_nested_loader_leaves_the_outer_generator_alone(scope: Scope) -> None:
    scope.place = 2
    outer = rng()
    outer.random()
    expected = outer.bit_generator.state
    inner = Scope()
    inner.begin(Draw(99))
    before = enter(inner)
    assert before is scope
    assert rng() is not outer
    rng().random()
    assert enter(before) is inner
    assert rng() is outer
    assert outer.bit_generator.state == expected


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


# -- the global generators ---


def draw_globals() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_a_scope_restores_the_global_generators_only_if_it_seeds_and_keeps_them() -> None:
    seed_globals(5)
    expected = draw_globals()
    for seeds, keeps, same in [(True, True, True), (True, False, False), (False, True, False)]:
        seed_globals(5)
        with Scope(seeds_globals=seeds, keeps_globals=keeps).kept():
            draw_globals()
        assert (draw_globals() == expected) is same
