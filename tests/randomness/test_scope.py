"""The random numbers of the sample that is being made right now."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.randomness.scope import GlobalStates, Scope, enter, globals_kept, rng, seed_globals
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


@pytest.mark.parametrize("items", [[5, 6, 7], (5, 6, 7)])
def test_how_far_one_is_in_what_is_asked_for_is_the_place(scope: Scope, items: Any) -> None:
    expected = [draw_at(scope, place) for place in range(3)]
    scope.begin_again()
    assert [(scope.place, float(rng().random())) for _ in scope.following(items)] == list(enumerate(expected))
    scope.place = 1
    assert scope.place == 1, "what is said outright counts"


def test_every_sample_has_numbers_of_its_own(scope: Scope) -> None:
    drawn = [draw_at(scope, place) for place in range(1000)]
    scope.collate()
    drawn.append(rng().random())
    assert len(set(drawn)) == 1001


def test_what_a_sample_draws_depends_on_neither_order_nor_neighbours(scope: Scope) -> None:
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


def test_within_a_sample_it_is_one_generator_that_goes_on(scope: Scope) -> None:
    scope.place = 3
    generator = rng()
    first = generator.random()
    assert rng() is generator
    assert rng().random() != first


def test_a_generator_that_somebody_keeps_is_never_seeded_again(scope: Scope) -> None:
    scope.place = 0
    kept = rng()
    untouched = kept.bit_generator.state
    expected = np.random.Generator(np.random.PCG64(0))
    expected.bit_generator.state = untouched
    for place in range(1, 5):
        draw_at(scope, place)
    assert rng() is not kept
    assert kept.random() == expected.random()


def test_a_generator_that_nobody_keeps_is_used_again(scope: Scope) -> None:
    draw_at(scope, 0)
    before = id(scope.generator())
    draw_at(scope, 1)
    assert id(scope.generator()) == before, "making one takes ten times as long"


def test_numbers_of_32_bits_do_not_leak_from_one_sample_to_the_next(scope: Scope) -> None:
    """PCG64 keeps half of a 64-bit number in store for the next one of 32 bits."""

    def draw(place: int) -> int:
        scope.place = place
        return int(rng().integers(1 << 32, dtype=np.uint32))

    drawn = draw(1)
    scope.begin(Draw(7))
    assert draw(0) != drawn
    assert draw(1) == drawn


def test_a_task_that_is_begun_again_draws_the_same(scope: Scope) -> None:
    first = [draw_at(scope, place) for place in range(3)]
    scope.begin_again()
    assert [draw_at(scope, place) for place in range(3)] == first


def test_tasks_draw_apart(scope: Scope) -> None:
    drawn = set()
    for key in range(50):
        scope.begin(Draw(key))
        drawn.add(draw_at(scope, 0))
    assert len(drawn) == 50


# -- collating ---


def test_collating_draws_apart_from_every_sample_and_every_other_batch() -> None:
    drawn = set()
    for first in range(0, 40, 4):
        scope = Scope()
        scope.begin(Draw(7, first))
        for scope.place in range(4):
            drawn.add(scope.key())
        scope.collate()
        drawn.add(scope.key())
    assert len(drawn) == 50


def test_batches_of_a_stream_are_told_apart_by_a_number() -> None:
    scope = Scope()
    scope.begin(Draw(7))
    drawn = set()
    for number in range(10):
        scope.collate(number)
        drawn.add(scope.key())
    assert len(drawn) == 10


# -- outside of loaders, and inside others ---


def test_outside_of_loaders_it_is_an_ordinary_generator() -> None:
    generator = rng()
    assert rng() is generator
    assert feedline.rng() is generator
    assert generator.random() != rng().random()


def test_each_thread_has_a_scope_of_its_own(scope: Scope) -> None:
    scope.place = 0
    inside = rng()
    seen: list[np.random.Generator] = []
    thread = threading.Thread(target=lambda: seen.append(rng()))
    thread.start()
    thread.join()
    assert seen[0] is not inside


def test_a_loader_inside_a_dataset_leaves_the_outer_one_where_it_was(scope: Scope) -> None:
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


def test_what_a_sample_draws_does_not_depend_on_loaders_inside_it() -> None:
    def batches(inner_seed: int | None) -> list[Any]:
        return [batch.tolist() for batch in feedline.Loader(Nested(inner_seed), 2, seed=3)]

    assert batches(None) == batches(1) == batches(2)


# -- the generators of the process ---


def draw_globals() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    )


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)


@given(keys)
def test_seeding_makes_all_three_follow_from_the_key(key: int) -> None:
    draw_globals()  # leaves a normal number in store, which must not survive
    seed_globals(key)
    first = draw_globals()
    draw_globals()
    random.gauss(0, 1)
    np.random.randn()
    seed_globals(key)
    assert draw_globals() == first
    seed_globals((key + 1) % 2**64)
    assert all(mine != theirs for mine, theirs in zip(draw_globals(), first, strict=True))


def test_the_high_bits_of_a_key_count() -> None:
    seed_globals(1)
    low = random.random(), torch.rand(()).item()
    seed_globals(1 + (1 << 40))
    assert (random.random(), torch.rand(()).item()) != low


@pytest.mark.parametrize("in_store", [True, False])
def test_the_generators_are_given_back_exactly(in_store: bool) -> None:
    """Python and NumPy make normal numbers in pairs and keep the second, which belongs to the caller as well."""

    def begin() -> None:
        seed_globals(5)
        if in_store:
            random.gauss(0, 1)
            np.random.randn()

    begin()
    undisturbed = [draw_globals() for _ in range(3)]
    begin()
    with globals_kept():
        seed_globals(99)
        draw_globals()
        random.gauss(0, 1)
        np.random.randn()
    assert [draw_globals() for _ in range(3)] == undisturbed


def test_the_generators_are_given_back_after_an_error() -> None:
    seed_globals(5)
    expected = draw_globals()
    seed_globals(5)
    with contextlib.suppress(LookupError), globals_kept():
        draw_globals()
        raise LookupError
    assert draw_globals() == expected


def test_a_scope_gives_back_what_is_not_its_own_and_only_if_it_seeds() -> None:
    seed_globals(5)
    expected = draw_globals()
    for seeds, keeps, same in [(True, True, True), (True, False, False), (False, True, False)]:
        seed_globals(5)
        with Scope(seeds_globals=seeds, keeps_globals=keeps).kept():
            draw_globals()
        assert (draw_globals() == expected) is same


# -- comparing them ---

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch": lambda: torch.rand(()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_that_was_drawn_from_is_named(name: str) -> None:
    seed_globals(3)
    before = GlobalStates.now()
    assert before == GlobalStates.now()
    assert before.differing(GlobalStates.now()) == []
    DRAWS[name]()
    after = GlobalStates.now()
    assert after != before
    assert after.differing(before) == [name]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("times", [1, 623, 624, 1000])
def test_states_are_given_back(name: str, times: int) -> None:
    """Twisters make 624 numbers at a time: what lies before and after that looks different in memory."""
    seed_globals(3)
    for _ in range(times):
        DRAWS[name]()
    states = GlobalStates.now()
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    seed_globals(8)
    states.restore()
    assert states == GlobalStates.now()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_it_is_seen_whether_anything_was_drawn_since_seeding() -> None:
    for draw in DRAWS.values():
        seed_globals(11)
        assert GlobalStates.now().is_seeded_with(11)
        assert not GlobalStates.now().is_seeded_with(12)
        seed_globals(11)
        draw()
        assert not GlobalStates.now().is_seeded_with(11)


def test_states_are_compared_and_not_looked_up() -> None:
    states = GlobalStates.now()
    assert states != "anything else"
    with pytest.raises(TypeError, match="unhashable"):
        hash(states)
