"""Stratified batches: proportions in every batch, every sample in an epoch, any batch by its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.samplers.stratified import StratifiedBatchSampler

label_lists = st.lists(st.integers(0, 9) | st.just(0), min_size=1, max_size=150)
batch_sizes = st.integers(1, 40)
seeds = st.integers(0, 2**64)


def counts_of(labels: list[int], batch: list[int]) -> NDArray[np.int64]:
    return np.bincount(np.array(labels)[batch], minlength=10)


@given(label_lists, batch_sizes, st.booleans(), st.booleans(), seeds)
def test_every_batch_has_the_proportions_of_the_dataset(
    labels: list[int], batch_size: int, drop_last: bool, shuffle: bool, seed: int
) -> None:
    sampler = StratifiedBatchSampler(labels, batch_size, drop_last=drop_last, shuffle=shuffle, seed=seed)
    batches = list(sampler)
    whole, rest = divmod(len(labels), batch_size)
    assert [len(batch) for batch in batches] == [batch_size] * whole + [rest] * (rest > 0 and not drop_last)
    assert len(sampler) == len(batches)
    indices = [index for batch in batches for index in batch]
    assert len(set(indices)) == len(indices)
    shares = np.bincount(labels, minlength=10) / len(labels)
    for batch in batches:
        assert np.abs(counts_of(labels, batch) - len(batch) * shares).max() < 1.5


@given(label_lists, st.integers(10, 40), st.booleans(), seeds)
def test_every_batch_has_each_class(labels: list[int], batch_size: int, shuffle: bool, seed: int) -> None:
    sampler = StratifiedBatchSampler(labels, batch_size, mode="each", shuffle=shuffle, seed=seed)
    batches = list(sampler)
    sizes = np.bincount(labels, minlength=10)
    assert all(len(batch) == batch_size for batch in batches)
    assert all((counts_of(labels, batch) > 0).tolist() == (sizes > 0).tolist() for batch in batches)
    # Every sample comes, and fewer batches would not be enough.
    assert {index for batch in batches for index in batch} == set(range(len(labels)))
    fewer = len(batches) - 1
    assert fewer == 0 or np.maximum(sizes, fewer)[sizes > 0].sum() > fewer * batch_size
    # Places beyond one per class are divided in proportion.
    counts = np.array([counts_of(labels, batch) for batch in batches])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1


def test_left_out_samples_differ_from_epoch_to_epoch() -> None:
    labels = [0] * 50 + [1]
    sampler = StratifiedBatchSampler(labels, 10, drop_last=True, seed=1)
    missing = [set(range(51)) - {index for batch in sampler for index in batch} for _ in range(200)]
    assert all(len(left_out) == 1 for left_out in missing)
    assert len(set.union(*missing)) > 45
    assert {50} in missing


def test_rare_classes_are_spread_over_the_epoch() -> None:
    labels = [0] * 990 + [1] * 10
    sampler = StratifiedBatchSampler(labels, 10, seed=1)
    for _ in range(5):
        places = [number for number, batch in enumerate(sampler) if max(batch) >= 990]
        assert len(places) == 10
        assert min(np.diff([*places, places[0] + 100])) >= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": []}, "labels is empty"),
        ({"labels": [0.0, float("nan")]}, r"labels\[1\]"),
        ({"batch_size": 0}, "batch_size=0 is not an integer of at least 1"),
        ({"mode": "equal"}, "mode='equal' is not one of 'proportional', 'each'"),
        ({"mode": "each"}, "each of the 3 classes.*batch_size=2.*at least 3"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rejects_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        StratifiedBatchSampler(**{"labels": [0, 1, 2, 2], "batch_size": 2, **arguments})
