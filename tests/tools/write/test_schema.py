"""What the first samples decide about each field, and what is left out because it differs from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.tools.write.samples import Agreement
from feedline.tools.write.schema import Column, Schema
from feedline.tools.write.writers.contract import FORMATS

DAY, MOMENT = np.datetime64("2024-01-01"), np.datetime64("2024-01-01T10:00:00")


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ([1, 2], "number", "<i8", ()),
        ([2**63, 2**64 - 1], "number", "<u8", ()),
        ([2**64], "nested", "", ()),
        ([1, 0.5], "number", "<f8", ()),
        ([np.float32(1), np.float32(2)], "number", "<f4", ()),
        ([np.uint8(1), np.int8(2)], "number", "<i2", ()),
        ([DAY, DAY], "number", "<M8[D]", ()),
        ([DAY, MOMENT], "nested", "", ()),
        (["a"], "str", "", ()),
        ([b"a"], "bytes", "", ()),
        ([b"a", "a"], "nested", "", ()),
        ([np.zeros((2, 3))], "array", "<f8", (2, 3)),
        ([np.zeros(2), np.zeros(3)], "ragged", "<f8", (-1,)),
        ([np.zeros(2), np.zeros(2, int)], "mixed", "", ()),
        ([np.zeros(2), np.zeros((2, 2))], "mixed", "", ()),
        ([[1, 2]], "nested", "", ()),
    ],
)
def test_kind_type_and_shape_of_a_column(values: list[Any], kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    column = Column.of("x", values)
    assert (column.kind, column.dtype, column.shape) == (kind, dtype, shape)
    for value in values:
        column.fitted(value)


# -- what the first samples agree on ----------------------------------------------------------------------------------


def agreed(samples: list[dict[str, Any]], format_: str, *, skips: bool = True) -> Schema:
    return Agreement(FORMATS[format_], "number {}".format, (), skips).schema(samples)


@pytest.mark.parametrize(
    ("format_", "values", "kind"),
    [
        ("lmdb", [np.zeros(2), np.zeros((3, 3)), "a", None], "nested"),
        ("tar", [np.zeros(2), np.zeros((3, 3))], "mixed"),
        ("hdf5", [np.zeros(2), np.zeros(3)], "ragged"),
    ],
)
def test_differences_that_the_format_supports_skip_no_samples(format_: str, values: list[Any], kind: str) -> None:
    assert agreed([{"x": value} for value in values], format_).columns[0].kind == kind


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([np.zeros(2), np.zeros(3), np.zeros(3)], "array", "<f8"),
        ([np.zeros(2), np.zeros(3)], "array", "<f8"),  # a tie: the first one
        ([None, 1, 2.5], "number", "<f8"),
        ([b"a", "b", b"c"], "str", ""),  # npy cannot store bytes, even if they are the majority
        ([np.zeros(2, np.float32), np.zeros(2), np.zeros(2)], "array", "<f8"),
    ],
)
def test_the_majority_decides(values: list[Any], kind: str, dtype: str) -> None:
    column = agreed([{"x": value} for value in values], "npy").columns[0]
    assert (column.kind, column.dtype, column.nullable) == (kind, dtype, False)
