"""Subsets behave like torch's Subset."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from feedline.datasets.derived.split import Subset

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


def test_a_list_of_indices_is_passed_to_datasets_that_accept_one() -> None:
    assert Subset(np.arange(6) * 2, INDICES)[[0, 2]].tolist() == [8, 6]


@pytest.mark.parametrize("dataset", [list("abcdef"), Batched()], ids=["single", "several"])
def test_in_torch_s_loader(dataset: Any) -> None:
    subset: Any = Subset(dataset, INDICES)
    loader = torch.utils.data.DataLoader(subset, batch_size=2, collate_fn=list)
    assert [sample for batch in loader for sample in batch] == [dataset[4], dataset[1], dataset[3]]


def test_pickle_and_repr() -> None:
    subset = pickle.loads(pickle.dumps(Subset(list("abcdef"), INDICES)))
    assert list(subset) == ["e", "b", "d"]
    assert repr(subset) == "Subset(3 of 6 samples of a list)"
