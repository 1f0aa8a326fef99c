"""Batches by a budget of tokens. What holds for all buckets is in test_buckets.py."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers.token_budget import TokenBudgetBatchSampler


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=150),
    st.integers(100, 1000),
    st.none() | st.integers(1, 20),
    st.booleans(),
)
def test_the_budget_is_never_exceeded(
    lengths: list[int], max_tokens: int, max_batch_size: int | None, shuffle: bool
) -> None:
    sampler = TokenBudgetBatchSampler(lengths, max_tokens, max_batch_size=max_batch_size, shuffle=shuffle, seed=1)
    for _ in range(2):
        batches = list(sampler)
        assert all(len(batch) * max(lengths[index] for index in batch) <= max_tokens for batch in batches)
        assert all(len(batch) <= (max_batch_size or max_tokens) for batch in batches)
        assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
        assert len(batches) == len(sampler)


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=60), st.floats(30, 300))
def test_seconds_instead_of_tokens(lengths: list[float], max_tokens: float) -> None:
    sampler = TokenBudgetBatchSampler(lengths, max_tokens, seed=1)
    for batch in sampler:
        assert len(batch) * max(lengths[index] for index in batch) <= max_tokens * (1 + 1e-12)


def test_most_batches_use_the_budget() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 0.7, 20_000).astype(int)
    sampler = TokenBudgetBatchSampler(lengths, 8192, seed=1)
    used = np.array([lengths[batch].max() * len(batch) for batch in sampler])
    assert np.mean(used > 0.85 * 8192) > 0.9


def test_a_sample_as_long_as_the_budget_is_alone() -> None:
    sampler = TokenBudgetBatchSampler([10, 10, 1], 10, shuffle=False)
    assert list(sampler) == [[2], [0], [1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1, 50, 20]}, r"lengths\[1\]=50 is more than max_tokens=10.*of 3 samples 2 are too long"),
        ({"lengths": [1.0, 10.5]}, r"lengths\[1\]=10.5"),
        ({"lengths": [1, -1]}, r"lengths\[1\]=-1"),
        ({"max_tokens": 0}, "max_tokens=0 is not a positive number"),
        ({"max_tokens": float("nan")}, "max_tokens=nan"),
        ({"max_tokens": float("inf")}, "max_tokens=inf"),
        ({"max_tokens": "many"}, "max_tokens='many'"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"max_batch_size": 0}, "max_batch_size=0 is not a positive integer"),
        ({"shuffle": 1}, "shuffle=1"),
    ],
    ids=str,
)
def test_what_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        TokenBudgetBatchSampler(**{"lengths": [1, 2, 3], "max_tokens": 10, **arguments})


def test_repr() -> None:
    sampler = TokenBudgetBatchSampler(np.array([1, 2, 3]), 6, max_batch_size=2, seed=4)
    assert repr(sampler) == (
        "TokenBudgetBatchSampler(3 lengths, max_tokens=6, max_batch_size=2, seed=4: 1 bucket, 2 batches)"
    )


def test_a_budget_of_tokens_is_kept_after_rounding() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    padded = -(-lengths // 8) * 8
    batches = list(TokenBudgetBatchSampler(lengths, 256, seed=1, multiple_of=8))
    assert max(len(batch) * padded[batch].max() for batch in batches) <= 256
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(500))
