"""Labels of any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.labels import classes_of


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
        (["a", None], r"cannot be told apart by sorting \(NoneType, str\)"),
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
