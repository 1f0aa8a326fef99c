"""Labels of any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.samplers import BalancedSampler, LengthBucketBatchSampler, WeightedRandomSampler
from feedline.types.labels import classes_of


@pytest.mark.parametrize(
    "labels",
    [
        [5, 2, 5, 9],
        (5, 2, 5, 9),
        np.array([5, 2, 5, 9], np.uint8),
        torch.tensor([5, 2, 5, 9]),
        [5.0, 2.0, 5.0, 9.0],
        ["b", "a", "b", "c"],
        np.array(["b", "a", "b", "c"], object),
        range(4),
        [False, True],
    ],
    ids=repr,
)
def test_numbers_name_the_labels(labels: Any) -> None:
    numbers, names = classes_of(labels)
    assert numbers.dtype == np.int64
    assert names[numbers].tolist() == list(labels)
    assert names.tolist() == sorted(set(names.tolist()))


def test_no_labels() -> None:
    numbers, names = classes_of([])
    assert len(numbers) == len(names) == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, float("nan"), float("nan")], r"classes\[1\] is .*nan.*2 of 3 samples have no label"),
        (np.array(["a", float("nan")], object), r"classes\[1\] is nan"),
        (["a", None], r"cannot be sorted \(NoneType, str\)"),
        ([1, "1"], r"\(int, str\)"),
        (np.zeros((3, 2)), r"shape \(3, 2\).*argmax"),
        ([[1], [2, 3]], "not one label per sample"),
        ("cat", "not a sequence"),
        (3, "not a sequence"),
        (iter([1]), "not a sequence"),
    ],
)
def test_what_is_no_list_of_labels(labels: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        classes_of(labels, "classes")


class Photos:
    """A dataset that must not be read as a whole: it is large, and knows no end."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[float, int]:
        assert index == 0, "a look at one sample is enough"
        return 0.5, 3


class TorchPhotos(Photos, torch.utils.data.Dataset[Any]):
    pass


@pytest.mark.parametrize(
    ("dataset", "hint"),
    [
        (Photos(), r"\[label for _, label in dataset\]"),
        (TorchPhotos(), r"\[label for _, label in dataset\]"),
        (TorchPhotos(targets=[3] * 1000), r"dataset\.targets"),
        ([(0.5, 3)] * 10, r"\[label for _, label in dataset\]"),
    ],
    ids=["plain", "torch", "with targets", "list of samples"],
)
def test_a_dataset_is_not_read_for_labels_but_refused(dataset: Any, hint: str) -> None:
    with pytest.raises(BadOption, match=rf"labels is a \w+, which is a dataset.* one value for each.*{hint}"):
        BalancedSampler(dataset)
    with pytest.raises(BadOption, match=r"lengths is a .* which is a dataset.* one value for each sample"):
        LengthBucketBatchSampler(dataset, 4)
    with pytest.raises(BadOption, match=r"weights is a .* which is a dataset"):
        WeightedRandomSampler(dataset, 4)


def test_labels_of_a_type_of_their_own_are_labels() -> None:
    class Column(Photos):
        def __getitem__(self, index: int) -> int:  # type: ignore[override]  # a label, not a photo
            return range(1000)[index]

    assert len(classes_of(Column())[0]) == 1000
