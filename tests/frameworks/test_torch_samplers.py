"""torch's samplers in blocks: the same indices, the same random numbers, drawn at the same moments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from feedline.errors import BadState
from feedline.frameworks.torch_samplers import index_blocks
from feedline.order.torch_order import batches_of
from tests.sampling import examples

counts = st.integers(1, 200)


def states(generator: torch.Generator | None) -> tuple[bytes, bytes]:
    own = b"" if generator is None else bytes(generator.get_state().numpy())
    return own, bytes(torch.get_rng_state().numpy())


def step_by_step(make: Callable[[], Iterator[Any]], generator: torch.Generator | None, stop: int | None) -> list[Any]:
    """Record each batch, and the state of the random generators before and after it."""
    torch.manual_seed(5)
    if generator is not None:
        generator.manual_seed(7)
    recorded: list[Any] = []
    batches = make()
    recorded.append(states(generator))
    for number, batch in enumerate(batches):
        recorded += [[int(index) for index in batch], states(generator)]
        if number == stop:
            return recorded
    recorded.append(states(generator))
    return recorded


@settings(deadline=None, max_examples=examples(150))
@given(
    count=counts,
    replacement=st.booleans(),
    num_samples=st.none() | st.integers(1, 300),
    batch_size=st.integers(1, 70),
    drop_last=st.booleans(),
    own_generator=st.booleans(),
    stop=st.none() | st.integers(0, 5),
)
def test_blocks_of_a_random_sampler_equal_its_iteration_in_every_detail(
    count: int,
    replacement: bool,
    num_samples: int | None,
    batch_size: int,
    drop_last: bool,
    own_generator: bool,
    stop: int | None,
) -> None:
    generator = torch.Generator() if own_generator else None
    sampler = RandomSampler(range(count), replacement, num_samples, generator)

    def theirs() -> Iterator[Any]:
        return iter(BatchSampler(sampler, batch_size, drop_last))

    def ours() -> Iterator[Any]:
        blocks = index_blocks(sampler, {})
        assert blocks is not None
        return (batch.array.tolist() for batch in batches_of(blocks, batch_size, drop_last=drop_last))

    assert step_by_step(ours, generator, stop) == step_by_step(theirs, generator, stop)


@settings(deadline=None, max_examples=examples(60))
@given(
    count=counts,
    replacement=st.booleans(),
    num_samples=st.none() | st.integers(1, 300),
    own_generator=st.booleans(),
)
def test_an_order_can_be_restarted_from_its_recorded_origin(
    count: int, replacement: bool, num_samples: int | None, own_generator: bool
) -> None:
    generator = torch.Generator() if own_generator else None
    sampler = RandomSampler(range(count), replacement, num_samples, generator)
    origin: dict[str, Any] = {}
    first = indices_of(sampler, origin)
    recorded = json.loads(json.dumps(origin))
    assert recorded, "recorded with the first block at the latest"
    torch.manual_seed(99)
    if generator is not None:
        generator.manual_seed(99)
    assert indices_of(sampler, recorded) == first
    assert recorded == origin


def indices_of(sampler: Any, origin: dict[str, Any]) -> list[int]:
    blocks = index_blocks(sampler, origin)
    assert blocks is not None
    listed = list(blocks)
    assert all(block.dtype == np.int64 for block in listed)
    return [index for block in listed for index in block.tolist()]


@pytest.mark.parametrize("own_generator", [True, False])
def test_rejects_the_recorded_origin_of_another_kind_of_sampler(own_generator: bool) -> None:
    origin: dict[str, Any] = {}
    indices_of(RandomSampler(range(5), generator=torch.Generator() if own_generator else None), origin)
    other = RandomSampler(range(5), generator=None if own_generator else torch.Generator())
    with pytest.raises(BadState, match="Create the sampler as it was when the state was saved"):
        indices_of(other, origin)


class Mine(RandomSampler):
    pass


class MySequence(SequentialSampler):
    pass


class Other(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([2, 1])


@pytest.mark.parametrize(
    "sampler",
    [
        Mine(range(3)),
        SequentialSampler(range(3)),
        MySequence(range(3)),
        Other(),
        SubsetRandomSampler([1, 2]),
        WeightedRandomSampler([0.5, 0.5], 2),
        BatchSampler(SequentialSampler(range(4)), 2, False),
        [1, 2],
        None,
    ],
)
def test_other_samplers_have_no_blocks(sampler: Any) -> None:
    assert index_blocks(sampler, {}) is None
