"""torch's samplers in blocks: the same indices, the same random numbers, drawn at the same moments."""

from __future__ import annotations

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

from feedline.frameworks.torch_samplers import index_blocks
from feedline.plan.batching import batches_of

counts = st.integers(1, 200)


def states(generator: torch.Generator | None) -> tuple[bytes, bytes]:
    own = b"" if generator is None else bytes(generator.get_state().numpy())
    return own, bytes(torch.get_rng_state().numpy())


def step_by_step(make: Callable[[], Iterator[Any]], generator: torch.Generator | None, stop: int | None) -> list[Any]:
    """Note each batch, and the state of the random generators before and after it."""
    torch.manual_seed(5)
    if generator is not None:
        generator.manual_seed(7)
    noted: list[Any] = []
    batches = make()
    noted.append(states(generator))
    for number, batch in enumerate(batches):
        noted += [[int(index) for index in batch], states(generator)]
        if number == stop:
            return noted
    noted.append(states(generator))
    return noted


@settings(deadline=None, max_examples=150)
@given(
    count=counts,
    replacement=st.booleans(),
    num_samples=st.none() | st.integers(1, 300),
    batch_size=st.integers(1, 70),
    drop_last=st.booleans(),
    own_generator=st.booleans(),
    stop=st.none() | st.integers(0, 5),
)
def test_a_random_sampler_is_obeyed_to_the_letter(
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
        blocks = index_blocks(sampler)
        assert blocks is not None
        return (batch.array.tolist() for batch in batches_of(blocks, batch_size, drop_last=drop_last))

    assert step_by_step(ours, generator, stop) == step_by_step(theirs, generator, stop)


@pytest.mark.parametrize("count", [0, 1, 2, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_a_sequential_sampler(count: int) -> None:
    blocks = index_blocks(SequentialSampler(range(count)))
    assert blocks is not None
    listed = list(blocks)
    assert all(block.dtype == np.int64 for block in listed)
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *listed]), np.arange(count))


class Growing:
    count = 3

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_a_dataset_that_grows_is_measured_when_iteration_begins(kind: Any) -> None:
    data = Growing()
    sampler = kind(data)
    data.count = 5
    blocks = index_blocks(sampler)
    assert blocks is not None
    assert sorted(np.concatenate(list(blocks)).tolist()) == [0, 1, 2, 3, 4]


def test_nothing_is_drawn_before_it_is_needed() -> None:
    generator = torch.Generator().manual_seed(0)
    before = states(generator)
    blocks = index_blocks(RandomSampler(range(10), generator=generator))
    assert states(generator) == before
    assert blocks is not None
    next(blocks)
    assert states(generator) != before


class Mine(RandomSampler):
    pass


class Other(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([2, 1])


@pytest.mark.parametrize(
    "sampler",
    [
        Mine(range(3)),
        Other(),
        SubsetRandomSampler([1, 2]),
        WeightedRandomSampler([0.5, 0.5], 2),
        BatchSampler(SequentialSampler(range(4)), 2, False),
        [1, 2],
        None,
    ],
)
def test_other_samplers_have_to_be_iterated(sampler: Any) -> None:
    assert index_blocks(sampler) is None
