from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.errors import PackError
from feedline.tools.write.agreement import Agreement
from feedline.tools.write.schema import Column, Schema, Unfit
from feedline.tools.write.writers.contract import FORMATS

pytestmark = pytest.mark.sample(5)


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ([1, 2], "number", "<i8", ()),
        ([1, 2**63], "nested", "", ()),
        ([2**63, 2**64 - 1], "number", "<u8", ()),
        ([2**64], "nested", "", ()),
        ([1, 0.5], "number", "<f8", ()),
        ([True, False], "number", "|b1", ()),
        ([np.float32(1), np.float32(2)], "number", "<f4", ()),
        ([np.uint8(1), np.int8(2)], "number", "<i2", ()),
        ([1j], "number", "<c16", ()),
        (["a"], "str", "", ()),
        ([b"a"], "bytes", "", ()),
        ([b"a", "a"], "nested", "", ()),
        ([np.zeros((2, 3))], "array", "<f8", (2, 3)),
        ([np.zeros(2), np.zeros(3)], "ragged", "<f8", (-1,)),
        ([np.zeros(2), np.zeros(2, int)], "mixed", "", ()),
        ([np.zeros(2), np.zeros((2, 2))], "mixed", "", ()),
        ([None], "nested", "", ()),
        ([[1, 2]], "nested", "", ()),
    ],
)
def test_kind_type_and_shape_of_a_column(values: list[Any], kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    column = Column.of("x", values)
    assert (column.kind, column.dtype, column.shape) == (kind, dtype, shape)
    for value in values:
        column.fitted(value)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 0.5),
        (1, "a"),
        (1, None),
        (1, 2**63),
        (np.uint8(1), 256),
        (np.float32(0.5), 0.1),
        ("a", b"a"),
        (b"a", "a"),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), [0.0, 0.0]),
    ],
)
def test_values_that_do_not_fit_the_first_samples_are_rejected(first: Any, later: Any) -> None:
    schema = Schema.of([{"x": first}])
    with pytest.raises(Unfit, match=r"its field 'x' is .* like those in the first samples") as caught:
        schema.fitted({"x": later})
    assert caught.value.advice.endswith(".")


def test_samples_with_other_fields_are_rejected() -> None:
    schema = Schema.of([{"x": 1, "y": 2}])
    assert list(schema.fitted({"y": 3, "x": 4})) == ["x", "y"]
    for sample in ({"x": 1}, {"x": 1, "y": 2, "z": 3}, {}):
        with pytest.raises(Unfit, match="but the first ones have the fields 'x', 'y'"):
            schema.fitted(sample)


def test_schemas_survive_json() -> None:
    schema = Schema.of(
        [{"a": np.zeros((2, 3)), "b": None, "c": b"\x89PNG\r\n\x1a\n"}, {"a": np.ones((2, 3)), "b": 1, "c": b""}]
    )
    assert Schema.from_json(schema.as_json()) == schema
    assert [column.nullable for column in schema.columns] == [False, True, False]
    assert schema.columns[2].extension == "png"


def test_times_of_different_units_do_not_make_one_column() -> None:
    day, moment = np.datetime64("2024-01-01"), np.datetime64("2024-01-01T10:00:00")
    assert Column.of("x", [day, day]).kind == "number"
    assert Column.of("x", [day, moment]).kind == "nested"
    with pytest.raises(ValueError, match=r"not datetime64\[D\] numbers"):
        Column.of("x", [day]).fitted(moment)
    assert Column.of("x", [day]).fitted(day) is day


# -- what the first samples agree on ----------------------------------------------------------------------------------


def agreed(samples: list[dict[str, Any]], format_: str, *, skips: bool = True, ragged: tuple[str, ...] = ()) -> Schema:
    return Agreement(FORMATS[format_], "number {}".format, ragged, skips).schema(samples)


@pytest.mark.parametrize("skips", [True, False])
def test_differences_that_the_format_supports_skip_no_samples(skips: bool) -> None:
    samples: list[dict[str, Any]] = [{"x": np.zeros(2)}, {"x": np.zeros((3, 3))}, {"x": "a"}, {"x": None}]
    assert agreed(samples, "lmdb", skips=skips).columns[0].kind == "nested"
    assert agreed(samples[:2], "tar", skips=skips).columns[0].kind == "mixed"
    assert agreed([{"x": np.zeros(2)}, {"x": np.zeros(3)}], "hdf5", skips=skips).columns[0].kind == "ragged"


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([np.zeros(2), np.zeros(3), np.zeros(3)], "array", "<f8"),
        ([np.zeros(2), np.zeros(3)], "array", "<f8"),  # a tie: the first one
        ([None, 1, 2.5], "number", "<f8"),
        ([b"a", "b", "c"], "str", ""),
        ([b"a", "b", b"c"], "str", ""),  # npy cannot store bytes, even if they are the majority
        ([[1], [2], 3], "number", "<i8"),
        ([np.zeros(2, np.float32), np.zeros(2), np.zeros(2)], "array", "<f8"),
    ],
)
def test_the_majority_decides(values: list[Any], kind: str, dtype: str) -> None:
    column = agreed([{"x": value} for value in values], "npy").columns[0]
    assert (column.kind, column.dtype, column.nullable) == (kind, dtype, False)


def test_the_majority_decides_the_fields() -> None:
    samples: list[dict[str, Any]] = [{"a": 1}, {"b": 1, "c": 2}, {"c": 3, "b": 4}]
    assert agreed(samples, "npy").names == ("b", "c")
    assert agreed(samples, "npy", skips=False).names == ("a",)


def test_the_error_names_two_samples_that_differ() -> None:
    samples = [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(3)}]
    text = r"npy cannot hold .* of different shapes.*'x'.* shape \(2,\) in number 0, and .* shape \(3,\) in number 2"
    with pytest.raises(PackError, match=text + r"\. Use lmdb.*--on-error skip"):
        agreed(samples, "npy", skips=False)


@pytest.mark.parametrize("skips", [True, False])
def test_skipping_is_not_advised_if_the_format_supports_no_sample(skips: bool) -> None:
    with pytest.raises(PackError, match=r"npy cannot hold bytes, as in the field 'x'"):
        agreed([{"x": b"a"}, {"x": b"b"}], "npy", skips=skips)
    with pytest.raises(PackError, match=r"in number 0, and None in number 1\. Use lmdb") as caught:
        agreed([{"x": b"a"}, {"x": None}], "npy", skips=skips)
    assert "on-error" not in str(caught.value), "skipping samples would not help"


def test_ragged_fields_are_applied_to_the_agreed_schema() -> None:
    assert agreed([{"x": np.zeros(2)}], "hdf5", ragged=("x",)).columns[0].kind == "ragged"
    with pytest.raises(PackError, match="'y' is not a field"):
        agreed([{"x": np.zeros(2)}], "hdf5", ragged=("y",))
