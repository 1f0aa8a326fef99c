"""Values into columns: what the default collate function makes of them, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline import collate
from feedline.datasets.columns import is_column, stacked


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        [1.5, 2.0],
        [True, False],
        [np.float32(1), np.float32(2)],
        [np.uint8(1), np.uint8(2)],
        [np.arange(3), np.arange(3) + 1],
        [np.zeros((2, 1), np.float32)] * 3,
        [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    ],
    ids=repr,
)
def test_numbers_become_what_the_collate_function_makes_of_them(values: list[Any]) -> None:
    column, expected = stacked(values, np.empty), collate.default(values)
    assert is_column(column)
    assert column.dtype == expected.dtype
    np.testing.assert_array_equal(column, expected)


def test_texts_are_columns_as_they_are() -> None:
    for values in (["a", "b"], [b"a", b"b"]):
        assert stacked(values, np.empty) is values
        assert is_column(values)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [1, None],
        [1 << 70, 1],
        [np.arange(3), np.arange(4)],
        [np.arange(3), np.arange(3.0)],
        [np.zeros(2, ">f4")] * 2,
        [np.array(["a"])] * 2,
        [np.datetime64("2020-01-01")] * 2,
        [np.str_("a")] * 2,
        [{"a": 1}] * 2,
        [None, None],
    ],
    ids=repr,
)
def test_other_values_are_left_to_the_collate_function(values: list[Any]) -> None:
    assert stacked(values, np.empty) is values
    assert not is_column(values)
