"""Labels of any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.samplers import BalancedSampler, LengthBucketBatchSampler, WeightedRandomSampler
from feedline.samplers.labels import classes_of


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
def test_labels_become_numbers_and_sorted_names(labels: Any) -> None:
    numbers, names = classes_of(labels)
    assert numbers.dtype == np.int64
    assert names[numbers].tolist() == list(labels)
    assert names.tolist() == sorted(set(names.tolist()))


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
def test_rejects_invalid_labels(labels: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        classes_of(labels, "classes")


class Photos:
    """A dataset that must not be read completely: it is large, and never raises IndexError."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[float, int]:
        assert index == 0, "only one sample should be read"
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
def test_rejects_a_dataset_as_labels_without_reading_it(dataset: Any, hint: str) -> None:
    with pytest.raises(BadOption, match=rf"labels is a \w+, which is a dataset.* one value for each.*{hint}"):
        BalancedSampler(dataset)
    with pytest.raises(BadOption, match=r"lengths is a .* which is a dataset.* one value for each sample"):
        LengthBucketBatchSampler(dataset, 4)
    with pytest.raises(BadOption, match=r"weights is a .* which is a dataset"):
        WeightedRandomSampler(dataset, 4)


def test_labels_may_be_of_a_custom_sequence_type() -> None:
    class Column(Photos):
        def __getitem__(self, index: int) -> int:  # type: ignore[override]  # a label, not a photo
            return range(1000)[index]

    assert len(classes_of(Column())[0]) == 1000
