"""Batches of a fixed size by length. What holds for all buckets is in test_buckets.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers.length_bucket import LengthBucketBatchSampler


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


def test_a_boundary_belongs_to_the_bucket_below() -> None:
    sampler = LengthBucketBatchSampler([1, 2, 3, 4], 4, boundaries=[2], shuffle=False)
    assert list(sampler) == [[0, 1], [2, 3]]
    assert sampler.longest.tolist() == [2, 4]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(1, 16))
def test_chosen_buckets_leave_one_short_batch_at_most(lengths: list[int], batch_size: int) -> None:
    sampler = LengthBucketBatchSampler(lengths, batch_size, seed=1)
    whole, rest = divmod(len(lengths), batch_size)
    assert sorted(map(len, sampler)) == [rest] * (rest > 0) + [batch_size] * whole
    assert len(LengthBucketBatchSampler(lengths, batch_size, drop_last=True)) == whole


def test_left_out_samples_differ_from_epoch_to_epoch() -> None:
    sampler = LengthBucketBatchSampler(range(100, 135), 16, drop_last=True, seed=1)
    left_out = [set(range(35)) - {index for batch in sampler for index in batch} for _ in range(20)]
    assert all(len(indices) == 3 for indices in left_out)
    assert len(set.union(*left_out)) > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boundaries": [5, 5]}, "do not ascend"),
        ({"boundaries": [5, 2]}, "do not ascend"),
        ({"boundaries": [1, float("nan")]}, "do not ascend"),
        ({"boundaries": ["a"]}, "not a list of lengths"),
        ({"boundaries": [[1], [2]]}, "not a list of lengths"),
        ({"boundaries": 5}, "not a list of lengths"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lengths": [1, -1]}, r"lengths\[1\]=-1"),
        ({"drop_last": None}, "drop_last=None"),
    ],
    ids=str,
)
def test_what_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        LengthBucketBatchSampler(**{"lengths": [1, 2, 3], "batch_size": 2, **arguments})


def test_repr() -> None:
    sampler = LengthBucketBatchSampler([1, 2, 3], 2, drop_last=True, boundaries=[])
    assert repr(sampler) == "LengthBucketBatchSampler(3 lengths, batch_size=2, drop_last=True: 1 bucket, 1 batches)"
