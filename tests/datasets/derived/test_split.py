"""`feedline.split`: no sample twice, with the requested sizes and proportions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets.derived.split import Subset
from feedline.errors import BadOption
from tests.sampling import examples

fraction_lists = st.lists(st.integers(1, 10), min_size=1, max_size=5).flatmap(
    lambda shares: st.integers(0, 5).map(lambda rest: [share / (sum(shares) + rest) for share in shares])
)
seeds = st.integers(0, 2**70)


def indices_of(parts: list[Any]) -> list[list[int]]:
    return [part.indices.tolist() for part in parts]


@settings(max_examples=examples(40))
@given(st.integers(5, 300), fraction_lists, seeds)
def test_sizes_follow_the_largest_remainder_method(count: int, fractions: list[float], seed: int) -> None:
    assume(min(fractions) * count >= 1)
    parts = feedline.split(range(count), fractions, seed=seed)
    for part, fraction in zip(parts, fractions, strict=True):
        assert math.floor(fraction * count + 1e-6) <= len(part) <= math.ceil(fraction * count - 1e-6)
        assert part.indices.dtype == np.int64
        assert (np.diff(part.indices) > 0).all()
    together = [index for part in indices_of(parts) for index in part]
    assert len(set(together)) == len(together)
    if sum(fractions) > 1 - 1e-9:
        assert sorted(together) == list(range(count))


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 6) | st.integers(0, 200), min_size=1, max_size=120), fraction_lists, seeds)
def test_stratified_parts_have_the_proportions_of_the_dataset(
    labels: list[int], fractions: list[float], seed: int
) -> None:
    count = len(labels)
    assume(min(fractions) * count >= 1)
    plain = feedline.split(range(count), fractions, seed=seed)
    parts = feedline.split(range(count), fractions, stratify=labels, seed=seed)
    assert list(map(len, parts)) == list(map(len, plain))
    together = [index for part in indices_of(parts) for index in part]
    assert len(set(together)) == len(together)
    exact = np.outer(fractions, np.bincount(labels))
    for part, expected in zip(parts, exact, strict=True):
        found = np.bincount(np.array(labels)[part.indices], minlength=len(expected))
        assert np.abs(found - expected).max() < 1 + 1e-6


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 15), min_size=20, max_size=120), st.sampled_from([[0.8, 0.2], [0.5, 0.25, 0.25]]), seeds)
def test_groups_stay_together(groups: list[int], fractions: list[float], seed: int) -> None:
    try:
        parts = feedline.split(range(len(groups)), fractions, groups=groups, seed=seed)
    except BadOption as exc:
        assert "groups kept together" in str(exc)  # noqa: PT017  (a few large groups)
        return
    owners = [{groups[index] for index in part} for part in indices_of(parts)]
    assert sum(map(len, owners)) == len(set(groups))
    largest = max(map(groups.count, groups))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * len(groups)) <= largest


def test_the_seed_determines_the_split() -> None:
    first, again, other = (indices_of(feedline.split(range(100), [0.5, 0.5], seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    # The same on every machine and in every later version: models are evaluated on samples they were not trained on.
    assert indices_of(feedline.split(range(12), [0.75, 0.25]))[1] == [4, 7, 9]


def test_sizes_may_be_numbers_of_samples() -> None:
    assert list(map(len, feedline.split(range(10), [7, 3]))) == [7, 3]
    assert list(map(len, feedline.split(range(10), list(np.array([4, 2]))))) == [4, 2]
    parts = feedline.split(range(12), [6, 3], stratify=[0, 0, 1] * 4)
    assert [np.bincount(part.indices % 3 // 2).tolist() for part in parts] == [[4, 2], [2, 1]]


def test_rounding_of_fractions() -> None:
    assert list(map(len, feedline.split(range(100), [0.29, 0.71]))) == [29, 71]
    assert list(map(len, feedline.split(range(10), [0.7, 0.2, 0.1]))) == [7, 2, 1]
    assert list(map(len, feedline.split(range(7), [1 / 3] * 3))) == [3, 2, 2]
    assert list(map(len, feedline.split(range(7), [1.0]))) == [7]


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *(({"parts": parts}, "sum to") for parts in ([0.8, 0.3], [8, 3], [1, 0.5])),
        *(({"parts": parts}, "not a list") for parts in ([10, 0], [0.5, float("nan")], [], 0.5, "80%", [True])),
        ({"parts": [0.99, 0.01]}, r"parts\[1\]=0.01 of 10"),
        ({"dataset": []}, "empty part"),
        ({"dataset": Stream()}, "dataset is a Stream"),
        ({"dataset": Endless()}, "without __len__"),
        ({"dataset": 5}, "not a dataset"),
        ({"stratify": [0] * 9}, "stratify has 9 labels for 10"),
        ({"stratify": [0.0] * 9 + [float("nan")]}, r"stratify\[9\]"),
        ({"groups": [0] * 9}, "groups has 9 labels for 10"),
        ({"groups": [0] * 10}, "groups"),
        ({"stratify": [0] * 10, "groups": [0] * 10}, "both given"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        feedline.split(**{"dataset": list(range(10)), "parts": [0.5, 0.5], **arguments})


# -- subsets -----------------------------------------------------------------------------------------------------------

INDICES = np.array([4, 1, 3])


class Batched:
    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        assert type(index) is int
        return index * 10

    def __getitems__(self, indices: Iterable[int]) -> list[int]:
        self.calls.append(list(indices))
        return [self[index] for index in self.calls[-1]]


def test_it_behaves_like_torch_s() -> None:
    dataset = Batched()
    ours = Subset(dataset, INDICES)
    theirs: Any = torch.utils.data.Subset(dataset, INDICES.tolist())  # type: ignore[arg-type]
    assert len(ours) == len(theirs)
    assert [ours[place] for place in (0, 1, 2, -1)] == [theirs[place] for place in (0, 1, 2, -1)]
    assert list(ours) == [40, 10, 30]
    assert ours.dataset is dataset
    assert ours.indices.tolist() == theirs.indices
    assert torch.utils.data.Subset(ours, [2, 0])[0] == 30  # type: ignore[arg-type]
    assert Subset(np.arange(6) * 2, INDICES)[[0, 2]].tolist() == [8, 6]
    assert list(pickle.loads(pickle.dumps(Subset(list("abcdef"), INDICES)))) == ["e", "b", "d"]
    assert repr(Subset(list("abcdef"), INDICES)) == "Subset(3 of 6 samples of a list)"


@pytest.mark.parametrize("index", [3, -4])
def test_indices_out_of_range(index: int) -> None:
    with pytest.raises(IndexError):
        Subset(list("abcdef"), INDICES)[index]
    several = Subset(Batched(), INDICES).__getitems__
    assert several is not None
    with pytest.raises(IndexError):
        several([0, index])


def test_samples_are_read_together_if_the_dataset_supports_it() -> None:
    dataset = Batched()
    several = Subset(dataset, INDICES).__getitems__
    assert several is not None
    assert several([2, 0, -1]) == [30, 40, 30]
    assert several(iter(())) == []
    assert dataset.calls == [[3, 4, 3], []]
    assert Subset(list("abcdef"), INDICES).__getitems__ is None
