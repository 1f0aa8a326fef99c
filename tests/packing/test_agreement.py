from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.errors import PackError
from feedline.packing.agreement import Agreement
from feedline.packing.formats import FORMATS
from feedline.packing.schema import Schema


def agreed(samples: list[dict[str, Any]], format_: str, *, skips: bool = True, ragged: tuple[str, ...] = ()) -> Schema:
    writer = FORMATS[format_].writer
    return Agreement(samples, lambda place: f"number {place}", writer, ragged=ragged, skips=skips).schema()


def test_samples_that_are_alike() -> None:
    samples = [{"x": np.zeros(2), "y": 1}, {"x": np.ones(2), "y": 0.5}]
    for skips in (True, False):
        assert agreed(samples, "npy", skips=skips) == Schema.of(samples)


@pytest.mark.parametrize("skips", [True, False])
def test_what_the_format_holds_is_no_reason_to_leave_anything_out(skips: bool) -> None:
    samples: list[dict[str, Any]] = [{"x": np.zeros(2)}, {"x": np.zeros((3, 3))}, {"x": "a"}, {"x": None}]
    assert agreed(samples, "lmdb", skips=skips).columns[0].kind == "nested"
    assert agreed(samples[:2], "tar", skips=skips).columns[0].kind == "mixed"
    assert agreed([{"x": np.zeros(2)}, {"x": np.zeros(3)}], "hdf5", skips=skips).columns[0].kind == "ragged"


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([np.zeros(2), np.zeros(3), np.zeros(3)], "array", "<f8"),
        ([np.zeros(2), np.zeros(3)], "array", "<f8"),  # as many of each: the first
        ([None, 1, 2.5], "number", "<f8"),
        ([b"a", "b", "c"], "str", ""),
        ([b"a", "b", b"c"], "str", ""),  # npy holds no bytes, however many there are
        ([[1], [2], 3], "number", "<i8"),
        ([np.zeros(2, np.float32), np.zeros(2), np.zeros(2)], "array", "<f8"),
    ],
)
def test_most_of_them_decide(values: list[Any], kind: str, dtype: str) -> None:
    column = agreed([{"x": value} for value in values], "npy").columns[0]
    assert (column.kind, column.dtype, column.nullable) == (kind, dtype, False)


def test_the_fields_that_most_have() -> None:
    samples: list[dict[str, Any]] = [{"a": 1}, {"b": 1, "c": 2}, {"c": 3, "b": 4}]
    assert agreed(samples, "npy").names == ("b", "c")
    assert agreed(samples, "npy", skips=False).names == ("a",)


def test_what_differs_is_said_with_both_samples() -> None:
    samples = [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(3)}]
    with pytest.raises(
        PackError,
        match=r"npy cannot hold the field 'x'.*float64 array of shape \(2,\) in number 0, and a float64 array of shape "
        r"\(3,\) in number 2, but the rows of an array have one shape.*--on-error skip",
    ):
        agreed(samples, "npy", skips=False)


@pytest.mark.parametrize("skips", [True, False])
def test_what_the_format_never_holds(skips: bool) -> None:
    with pytest.raises(PackError, match=r"npy cannot hold the field 'x' \(bytes\): arrays cut"):
        agreed([{"x": b"a"}, {"x": b"b"}], "npy", skips=skips)
    with pytest.raises(PackError, match=r"in number 0, and None in number 1, but .*[^)]$") as caught:
        agreed([{"x": b"a"}, {"x": None}], "npy", skips=skips)
    assert "on-error" not in str(caught.value), "leaving samples out would not help"


def test_fields_that_are_said_to_be_ragged() -> None:
    assert agreed([{"x": np.zeros(2)}], "hdf5", ragged=("x",)).columns[0].kind == "ragged"
    with pytest.raises(PackError, match="'y' is no field"):
        agreed([{"x": np.zeros(2)}], "hdf5", ragged=("y",))
