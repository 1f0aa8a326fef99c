"""Properties of every batch sampler that makes its own order: batches are a function of their number."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.samplers import BalancedBatches, LengthBucketBatchSampler, StratifiedBatchSampler, TokenBudgetBatchSampler
from feedline.types import Key
from tests.sampling import examples

# Any: options of a sampler. Each is made of whole numbers: lengths, or labels.
MAKERS: dict[str, Callable[..., Any]] = {
    "length": lambda numbers, **options: LengthBucketBatchSampler(numbers, 8, **options),
    "boundaries": lambda numbers, **options: LengthBucketBatchSampler(numbers, 8, boundaries=[3, 20, 90], **options),
    "budget": lambda numbers, **options: TokenBudgetBatchSampler(numbers, max(*numbers, 1) * 4, **options),
    "capped": lambda numbers, **options: TokenBudgetBatchSampler(
        numbers, max(*numbers, 1), max_batch_size=3, **options
    ),
    "equal": lambda numbers, **options: BalancedBatches(numbers, 8, rank=1, world_size=2, window=2, **options),
    "stratified": lambda numbers, **options: StratifiedBatchSampler(np.asarray(numbers) % 5, 8, **options),
    "each": lambda numbers, **options: StratifiedBatchSampler(np.asarray(numbers) % 5, 8, mode="each", **options),
}
MANY = np.random.default_rng(0).lognormal(5, 1, 401).astype(int)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=examples(40))
@given(numbers=st.lists(st.integers(0, 100), min_size=2, max_size=120), data=st.data())
def test_batches_by_number_equal_those_of_iteration(name: str, numbers: list[int], data: st.DataObject) -> None:
    sampler = MAKERS[name](numbers, seed=3)
    epochs = [list(sampler), list(sampler)]
    fresh = MAKERS[name](numbers, seed=3)
    for number, epoch in data.draw(
        st.lists(st.tuples(st.integers(0, len(sampler) - 1), st.integers(0, 1)), max_size=10)
    ):
        batch = fresh.batch(number, Key(3, epoch))
        assert batch.dtype == np.int64
        assert batch.tolist() == epochs[epoch][number]
        batch[:] = -1  # the array belongs to the caller


@pytest.mark.parametrize("name", MAKERS)
def test_epochs_differ_and_are_reproducible_by_seed(name: str) -> None:
    sampler = MAKERS[name](MANY, seed=1)
    epochs = [list(sampler) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(MAKERS[name](MANY, seed=1)) == epochs[0]
    assert list(MAKERS[name](MANY, seed=2)) != epochs[0]


@pytest.mark.parametrize("name", MAKERS)
def test_pickle_and_description(name: str) -> None:
    sampler = MAKERS[name](MANY[:200], seed=1)
    list(sampler)
    sampler.set_epoch(0)
    twin = pickle.loads(pickle.dumps(sampler))
    assert list(twin) == list(sampler)
    described = json.dumps(sampler.describe())
    assert described == json.dumps(twin.describe())
    others = [MAKERS[name](MANY[1:201]), MAKERS[name](MANY[:200], shuffle=False)]
    assert all(json.dumps(other.describe()) != described for other in others)
