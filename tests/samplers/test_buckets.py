"""Buckets: properties of both bucket samplers, and how buckets are chosen."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers.buckets import LengthBucketBatchSampler, TokenBudgetBatchSampler, lengths_of
from tests.samplers.test_batch_laws import MAKERS
from tests.sampling import examples

LOG_NORMAL = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(int)

length_lists = st.lists(st.integers(0, 100), min_size=2, max_size=120) | st.lists(
    st.floats(0, 100), min_size=2, max_size=60
)


@pytest.mark.parametrize("name", ["length", "boundaries", "budget", "capped"])
@settings(max_examples=examples(40))
@given(lengths=length_lists, drop_last=st.booleans(), shuffle=st.booleans(), seed=st.integers(0, 2**64))
def test_each_sample_comes_once(name: str, lengths: list[float], drop_last: bool, shuffle: bool, seed: int) -> None:
    sampler = MAKERS[name](lengths, drop_last=drop_last, shuffle=shuffle, seed=seed)
    for _ in range(2):
        batches = list(sampler)
        indices = [index for batch in batches for index in batch]
        assert len(batches) == len(sampler)
        assert all(batches)
        assert len(set(indices)) == len(indices)
        assert drop_last or sorted(indices) == list(range(len(lengths)))


def test_buckets_leave_little_padding() -> None:
    without = LengthBucketBatchSampler(LOG_NORMAL, 32, boundaries=[]).padding()
    by_length = LengthBucketBatchSampler(LOG_NORMAL, 32)
    by_budget = TokenBudgetBatchSampler(LOG_NORMAL, 16_384)
    assert without > 0.7
    assert by_length.padding() < without / 5
    assert by_budget.padding() < without / 10
    assert len(by_length) == len(LOG_NORMAL) // 32
    assert len(by_budget) < 1.1 * LOG_NORMAL.sum() / 16_384


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "lengths is empty"),
        ([1, -2], r"lengths\[1\]=-2 is not a length"),
        ([1.0, float("nan")], r"lengths\[1\]=nan"),
        (["a"], "must hold numbers"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_rejects_invalid_lengths(lengths: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        lengths_of(lengths)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=100),
    st.lists(st.integers(0, 70), unique=True, max_size=5).map(sorted),
    st.integers(1, 12),
)
def test_given_boundaries_are_never_crossed(lengths: list[int], boundaries: list[int], batch_size: int) -> None:
    sampler = LengthBucketBatchSampler(lengths, batch_size, boundaries=boundaries, seed=1)
    bucket_of = np.searchsorted(boundaries, lengths, side="left")
    counts = np.bincount(bucket_of)
    batches = list(sampler)
    assert all(len(set(bucket_of[batch])) == 1 for batch in batches)
    assert all(len(batch) <= batch_size for batch in batches)
    assert len(batches) == sum(-(-count // batch_size) for count in counts.tolist())


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(1, 16))
def test_chosen_buckets_leave_at_most_one_short_batch(lengths: list[int], batch_size: int) -> None:
    sampler = LengthBucketBatchSampler(lengths, batch_size, seed=1)
    whole, rest = divmod(len(lengths), batch_size)
    assert sorted(map(len, sampler)) == [rest] * (rest > 0) + [batch_size] * whole
    assert len(LengthBucketBatchSampler(lengths, batch_size, drop_last=True)) == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boundaries": [5, 2]}, "do not ascend"),
        ({"boundaries": [1, float("nan")]}, "do not ascend"),
        ({"boundaries": 5}, "not a list of lengths"),
    ],
    ids=str,
)
def test_rejects_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        LengthBucketBatchSampler(**{"lengths": [1, 2, 3], "batch_size": 2, **arguments})


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1, 50, 20]}, r"lengths\[1\]=50 is more than max_tokens=10.*2 of 3 samples are too long"),
        ({"max_tokens": 0}, "max_tokens=0 is not a positive number"),
        ({"max_tokens": float("nan")}, "max_tokens=nan"),
        ({"max_batch_size": 0}, "max_batch_size=0 is not an integer of at least 1"),
    ],
    ids=str,
)
def test_rejects_bad_budgets(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        TokenBudgetBatchSampler(**{"lengths": [1, 2, 3], "max_tokens": 10, **arguments})


def test_the_budget_holds_after_rounding_lengths_up() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    padded = -(-lengths // 8) * 8
    batches = list(TokenBudgetBatchSampler(lengths, 256, seed=1, multiple_of=8))
    assert max(len(batch) * padded[batch].max() for batch in batches) <= 256
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(500))
