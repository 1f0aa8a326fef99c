"""Indices in random order; counts and rejected arguments are torch's."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.samplers import RandomSampler, SubsetRandomSampler
from feedline.types import Key
from tests.samplers.chi_square import assert_fits

torch_data = pytest.importorskip("torch.utils.data")


@given(st.integers(1, 60), st.none() | st.integers(1, 200), st.integers(0, 2**64))
def test_every_pass_contains_each_index_at_most_once(samples: int, num_samples: int | None, seed: int) -> None:
    sampler = RandomSampler(range(samples), num_samples=num_samples, seed=seed)
    drawn = list(sampler)
    assert len(drawn) == len(sampler) == sampler.num_samples == (num_samples or samples)
    for start in range(0, len(drawn), samples):
        one_pass = drawn[start : start + samples]
        assert len(set(one_pass)) == len(one_pass)
        assert set(one_pass) <= set(range(samples))


def test_replacement_is_uniform() -> None:
    drawn = list(RandomSampler(range(20), replacement=True, num_samples=40_000, seed=2))
    assert_fits(np.bincount(drawn, minlength=20))
    pairs = Counter(pairwise(drawn))
    assert_fits([pairs[left, right] for left in range(20) for right in range(20)])


class Huge:
    def __len__(self) -> int:
        return 2**63 - 1


@pytest.mark.parametrize("replacement", [False, True])
def test_the_largest_possible_dataset(replacement: bool) -> None:
    sampler = RandomSampler(Huge(), replacement=replacement, seed=1)
    last = np.array([0, 2**63 - 2])
    assert len(set(sampler.at(last, Key(1, 0)).tolist())) == 2
    halves = sampler.at(np.arange(10_000), Key(1, 0)) > 2**62
    assert 4700 < halves.sum() < 5300


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (range(3), {"replacement": 1}),
        (range(3), {"num_samples": 0}),
        (range(3), {"num_samples": -1}),
        (range(3), {"num_samples": 2.0}),
        (range(0), {}),
        (iter([1]), {}),
    ],
)
def test_rejects_what_torch_rejects(dataset: Any, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        torch_data.RandomSampler(dataset, **options)
    with pytest.raises(theirs.type):
        RandomSampler(dataset, **options)


torch = pytest.importorskip("torch")


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_each_index_of_a_subset_comes_once(indices: list[int]) -> None:
    sampler = SubsetRandomSampler(indices)
    assert sorted(sampler) == sorted(indices)
    assert len(sampler) == len(indices)
    assert sampler.indices is indices


@pytest.mark.parametrize("convert", [list, tuple, np.array, torch.tensor, lambda i: np.array(i, np.uint8)])
def test_indices_may_be_in_any_container(convert: Any) -> None:
    found = list(SubsetRandomSampler(convert([5, 3, 9])))
    assert sorted(found) == [3, 5, 9]
    assert all(type(index) is int for index in found)


@pytest.mark.parametrize(
    ("indices", "match"),
    [([True, False], "flatnonzero"), ([1.5], "integers"), (["a"], "integers"), ([[1], [2]], "shape")],
)
def test_rejects_invalid_lists_of_indices(indices: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SubsetRandomSampler(indices)
