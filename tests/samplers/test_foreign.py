"""Samplers that can only be iterated over: the same order on every rank, and unaffected generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from feedline.errors import BadOption
from feedline.samplers.foreign import ForeignBatchSampler, ForeignSampler, yields_batches
from feedline.types import Key

torch = pytest.importorskip("torch")
torch_data = torch.utils.data


class Mine:
    """A user's sampler that draws from one of the global generators."""

    def __init__(self, draw: Any, count: int = 20) -> None:
        self.draw = draw
        self.count = count
        self.iterations = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        return iter([self.draw() for _ in range(20)])


DRAWS = {
    "random": lambda: random.randrange(1000),
    "numpy": lambda: np.random.randint(1000),
    "torch": lambda: int(torch.randint(1000, ())),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_order_depends_only_on_the_key_and_global_generators_are_not_affected(draw: Any) -> None:
    def order(epoch: int) -> list[int]:
        found: list[int] = ForeignSampler(Mine(draw)).at(np.arange(20), Key(3, epoch)).tolist()
        return found

    def drawn(*epochs: int) -> list[Any]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return [draw(), [order(epoch) for epoch in epochs], draw()]

    first, orders, second = drawn(1, 2)
    assert drawn() == [first, [], second]
    assert order(1) == orders[0] != orders[1]


def test_the_generator_of_a_torch_sampler_is_seeded_and_restored() -> None:
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    states = [generator.get_state() for generator in generators]
    orders = []
    for generator in generators:
        sampler = torch_data.BatchSampler(torch_data.RandomSampler(range(20), generator=generator), 4, False)
        orders.append([ForeignBatchSampler(sampler).batch(number, Key(0, 0)).tolist() for number in range(5)])
    assert orders[0] == orders[1]
    assert all(torch.equal(g.get_state(), state) for g, state in zip(generators, states, strict=True))


@pytest.mark.parametrize("count", [19, 21])
def test_rejects_a_sampler_with_a_wrong_length(count: int) -> None:
    with pytest.raises(BadOption, match=f"length of {count} but yields"):
        ForeignSampler(Mine(DRAWS["random"], count)).at(np.array([0]), Key(0, 0))


@pytest.mark.parametrize(
    ("sampler", "batches"),
    [
        ([3, 4], False),
        ([], False),
        ([[3], [4, 5]], True),
        ([(3,)], True),
        ([np.array([1, 2])], True),
        ([torch.tensor([1, 2])], True),
        ([torch.tensor(1)], False),
        (torch_data.RandomSampler(range(3)), False),
        (torch_data.BatchSampler(range(3), 2, False), True),
    ],
)
def test_batches_are_distinguished_from_indices(sampler: Any, batches: bool) -> None:
    assert yields_batches(sampler) is batches
