"""Seeding the global generators only where samples draw from them does not change the batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.randomness.global_states import seed_globals
from feedline.randomness.keys import mix
from feedline.randomness.scope import Scope, enter, rng
from feedline.types import Draw
from feedline.workers.fetch.fetcher import SeededFetcher
from feedline.workers.fetch.guard import Asking
from tests.sampling import examples

pytestmark = pytest.mark.usefixtures("generators_as_they_were")

DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "randn": np.random.randn,
    "torch": lambda: torch.rand(()).item(),
}


class Sometimes:
    """Draws for some indices only; counts requests."""

    def __init__(self, drawing: set[int], draw: Callable[[], float] = random.random) -> None:
        self.drawing = drawing
        self.draw = draw
        self.requests = 0

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.requests += 1
        return index, self.draw() if index in self.drawing else 0.0


class Bench:
    """A fetcher and its scope."""

    def __init__(self, dataset: Any, *, keeps: bool = False, join: Any = list, join_draws: bool = False) -> None:
        self.dataset = dataset
        self.scope = Scope(seeds_globals=True, keeps_globals=keeps)
        self.fetch = SeededFetcher(Asking(dataset.__getitem__, list, join, join_draws), self.scope)

    def batch(self, number: int, size: int = 2) -> Any:
        """Make batch `number`, which has `size` indices from `number * size` on."""
        self.scope.begin(Draw(7, number * size))
        before = enter(self.scope)
        try:
            return self.fetch(range(number * size, (number + 1) * size))
        finally:
            enter(before)


def expected(dataset: Sometimes, index: int) -> tuple[int, float]:
    """Return a sample made right after its own seeding."""
    seed_globals(mix(7, index))
    return index, dataset.draw() if index in dataset.drawing else 0.0


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("keeps", [True, False])
@settings(deadline=None, max_examples=examples(12))
@given(drawing=st.sets(st.integers(0, 39), max_size=5), disturbing=st.booleans())
def test_batches_are_the_same_however_rarely_samples_draw(
    name: str, keeps: bool, drawing: set[int], disturbing: bool
) -> None:
    dataset = Sometimes(drawing, DRAWS[name])
    bench = Bench(dataset, keeps=keeps)
    for number in range(20):
        batch = bench.batch(number)
        if disturbing and keeps:  # the training loop draws too, from its own generators
            DRAWS[name]()
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()
        assert batch == [expected(dataset, index) for index in (2 * number, 2 * number + 1)]
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])


def test_a_batch_made_again_starts_with_fresh_generators() -> None:
    class Both(Sometimes):
        def __getitem__(self, index: int) -> tuple[int, float]:
            mine = rng().random()
            return index, mine + (random.random() if index in self.drawing else 0.0)

    def batches(drawing: set[int]) -> list[Any]:
        bench = Bench(Both(drawing))
        return [bench.batch(number) for number in range(10)]

    always, rare = batches(set(range(20))), batches({13})
    assert rare[6][1] == always[6][1]
    never = batches(set())
    assert [batch for number, batch in enumerate(rare) if number != 6] == [
        batch for number, batch in enumerate(never) if number != 6
    ]


def test_the_collate_function_may_draw_too() -> None:
    def join(samples: list[Any]) -> tuple[list[Any], float]:
        return samples, np.random.rand() if samples[0][0] >= 16 else 0.0

    first, second = (Bench(Sometimes(set()), join=join, join_draws=True) for _ in range(2))
    np.random.seed(1)
    mine = [first.batch(number)[1] for number in range(12)]
    np.random.seed(2)
    assert [second.batch(number)[1] for number in range(12)] == mine
    assert len(set(mine[8:])) == 4
