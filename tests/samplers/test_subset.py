"""Given indices in random order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.samplers import SubsetRandomSampler

torch = pytest.importorskip("torch")


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_each_index_once(indices: list[int]) -> None:
    sampler = SubsetRandomSampler(indices)
    assert sorted(sampler) == sorted(indices)
    assert len(sampler) == len(indices)
    assert sampler.indices is indices


@pytest.mark.parametrize("convert", [list, tuple, np.array, torch.tensor, lambda i: np.array(i, np.uint8)])
def test_any_container(convert: Any) -> None:
    found = list(SubsetRandomSampler(convert([5, 3, 9])))
    assert sorted(found) == [3, 5, 9]
    assert all(type(index) is int for index in found)


@pytest.mark.parametrize(
    ("indices", "match"),
    [([True, False], "flatnonzero"), ([1.5], "integers"), (["a"], "integers"), ([[1], [2]], "shape")],
)
def test_what_is_no_list_of_indices_is_refused(indices: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SubsetRandomSampler(indices)


def test_description_tells_subsets_apart() -> None:
    assert SubsetRandomSampler([1, 2]).describe() != SubsetRandomSampler([1, 3]).describe()
