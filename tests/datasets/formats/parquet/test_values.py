from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedline.datasets.formats.parquet.values import prepared, text_of, whole
from feedline.testing.asserting import assert_same

DAY = datetime.date(2020, 2, 29)
TIME = datetime.datetime(2020, 2, 29, 12, 30, 1, 250000)

# The first item creates the array: pyarrow imports pandas with its first array, and collecting tests should not.
CASES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "integers": (lambda: pa.array([1, -2], pa.int16()), [np.int16(1), np.int16(-2)]),
    "large": (lambda: pa.array([0, 2**64 - 1], pa.uint64()), [np.uint64(0), np.uint64(2**64 - 1)]),
    "floats": (lambda: pa.array([1.5, float("nan")], pa.float32()), [np.float32(1.5), np.float32("nan")]),
    "half": (lambda: pa.array(np.array([1.5, 2], np.float16)), [np.float16(1.5), np.float16(2)]),
    "booleans": (lambda: pa.array([True, False]), [np.bool_(True), np.bool_(False)]),
    "nulls": (lambda: pa.array([1, None], pa.int8()), [np.int8(1), None]),
    "booleans with nulls": (lambda: pa.array([None, True]), [None, np.bool_(True)]),
    "nothing": (lambda: pa.nulls(2), [None, None]),
    "strings": (lambda: pa.array(["ä", None]), ["ä", None]),
    "large strings": (lambda: pa.array(["ä", ""], pa.large_string()), ["ä", ""]),
    "string views": (lambda: pa.array(["ä", "b" * 40], pa.string_view()), ["ä", "b" * 40]),
    "bytes": (lambda: pa.array([b"\0\xff", b""]), [b"\0\xff", b""]),
    "fixed bytes": (lambda: pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    "dictionary": (lambda: pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "dictionary of numbers": (lambda: pa.array([7, 7]).dictionary_encode(), [np.int64(7), np.int64(7)]),
    "dates": (lambda: pa.array([DAY, None]), [np.datetime64("2020-02-29", "D"), None]),
    "dates in ms": (lambda: pa.array([DAY, DAY], pa.date64()), [np.datetime64("2020-02-29", "ms")] * 2),
    "timestamps": (lambda: pa.array([TIME, TIME], pa.timestamp("us")), [np.datetime64(TIME, "us")] * 2),
    "before 1970": (
        lambda: pa.array([datetime.datetime(1900, 1, 1)] * 2, pa.timestamp("s")),
        [np.datetime64("1900-01-01T00:00:00", "s")] * 2,
    ),
    "with a time zone": (
        lambda: pa.array([TIME, TIME], pa.timestamp("ms", tz="Asia/Tokyo")),
        [np.datetime64("2020-02-29T12:30:01.250", "ms")] * 2,
    ),
    "durations": (lambda: pa.array([datetime.timedelta(1)] * 2, pa.duration("s")), [np.timedelta64(86400, "s")] * 2),
    "times": (lambda: pa.array([datetime.time(1, 2)] * 2), [datetime.time(1, 2)] * 2),
    "decimals": (lambda: pa.array([decimal.Decimal("1.20"), None]), [decimal.Decimal("1.20"), None]),
    "lists": (
        lambda: pa.array([[1, 2], []], pa.list_(pa.int32())),
        [np.array([1, 2], np.int32), np.array([], np.int32)],
    ),
    "lists that are missing": (lambda: pa.array([None, [1]]), [None, np.array([1])]),
    "lists with a gap": (lambda: pa.array([[1, None], [2]]), [[1, None], np.array([2])]),
    "lists of strings": (lambda: pa.array([["a", None], []]), [["a", None], []]),
    "lists of lists": (lambda: pa.array([[[1], [2, 3]], []]), [[np.array([1]), np.array([2, 3])], []]),
    "lists of bools": (lambda: pa.array([[True], [False, True]]), [np.array([True]), np.array([False, True])]),
    "fixed lists": (
        lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8(), 2)),
        list(np.array([[1, 2], [3, 4]], np.uint8)),
    ),
    "fixed lists with a gap": (
        lambda: pa.array([[1, 2], [None, 4]], pa.list_(pa.float64(), 2)),
        [np.array([1.0, 2.0]), [None, 4.0]],
    ),
    "fixed lists that are missing": (
        lambda: pa.array([None, [3, 4]], pa.list_(pa.uint8(), 2)),
        [None, np.array([3, 4], np.uint8)],
    ),
    "fixed lists of fixed lists": (
        lambda: pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int8(), 1), 2)),
        [np.array([[1], [2]], np.int8), np.array([[3], [4]], np.int8)],
    ),
    "fixed lists of strings": (lambda: pa.array([["a"], None], pa.list_(pa.string(), 1)), [["a"], None]),
    "structs": (
        lambda: pa.array([{"a": 1, "b": {"c": ["x"]}}, None]),
        [{"a": np.int64(1), "b": {"c": ["x"]}}, None],
    ),
    "lists of structs": (lambda: pa.array([[{"a": 1}], []]), [[{"a": np.int64(1)}], []]),
    "maps": (lambda: pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), [[("a", 1)], None]),
}


def with_gaps(scalar: Any, alias: str) -> dict[str, tuple[Callable[[], Any], list[Any]]]:
    kind, pair = pa.type_for_alias(alias), np.array([scalar, scalar])
    few, nested = pa.list_(kind, 2), pa.list_(pa.list_(kind, 2), 2)
    deep = [[None, [3, None]], [[3, 3], [3, 3]]]
    return {
        f"{alias} in lists": (lambda: pa.array([[3, None], [3, 3]], pa.list_(kind)), [[scalar, None], pair]),
        f"{alias} in fixed lists": (lambda: pa.array([[3, None], [3, 3]], few), [[scalar, None], pair]),
        f"{alias} in nested lists": (
            lambda: pa.array(deep, nested),
            [[None, [scalar, None]], np.array([pair, pair])],
        ),
    }


for unit in ("ns", "us"):
    CASES |= with_gaps(np.datetime64(3, unit), f"timestamp[{unit}]")
    CASES |= with_gaps(np.timedelta64(3, unit), f"duration[{unit}]")
CASES |= with_gaps(np.datetime64(3, "D"), "date32")


def tensors(shape: list[int], permutation: list[int] | None = None) -> Any:
    kind = pa.fixed_shape_tensor(pa.int32(), shape, permutation=permutation)
    size = int(np.prod(shape))
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * size, dtype=np.int32)), size)
    return pa.ExtensionArray.from_storage(kind, storage)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("offset", [0, 1])
def test_values(name: str, offset: int) -> None:
    make, expected = CASES[name]
    array = pa.concat_arrays([make(), make()]).slice(offset, 3)  # an array that does not start where its memory starts
    expected = [expected[(place + offset) % 2] for place in range(3)]
    found = prepared(array).take(np.array([2, 0, 1, 0, 2]))
    assert_same(list(found), [expected[place] for place in (2, 0, 1, 0, 2)])
    assert_same(list(prepared(array).take(np.array([1]))), [expected[1]])
    assert text_of(array.type)


@pytest.mark.parametrize(("shape", "order"), [([6], None), ([2, 3], None), ([2, 3], [1, 0]), ([2, 3, 4], [2, 0, 1])])
def test_tensors_have_their_shape(shape: list[int], order: list[int] | None) -> None:
    array = tensors(shape, order)
    whole_array = np.arange(4 * np.prod(shape), dtype=np.int32).reshape(4, *shape)
    if order is not None:  # pyarrow's own to_numpy_ndarray gets more than two axes wrong, as of version 26
        whole_array = whole_array.transpose(0, *(1 + axis for axis in order))
    for part, expected in ((array, whole_array), (array.slice(1, 2), whole_array[1:3])):
        found = prepared(part).take(np.array([1, 0]))
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, expected[[1, 0]])
    assert text_of(array.type) == f"int32[{', '.join(map(str, whole_array.shape[1:]))}]"


def test_the_type_of_a_value_does_not_depend_on_its_neighbours() -> None:
    alone = prepared(pa.array([[1.0, 2.0]])).take(np.array([0]))
    beside = prepared(pa.array([[1.0, 2.0], [None, 3.0], None])).take(np.array([0]))
    assert_same(list(beside), list(alone))


def test_chunked_columns_become_one_column() -> None:
    column = pa.chunked_array([pa.array(["a"]), pa.array(["b", "c"])])
    assert list(prepared(whole(column)).take(np.arange(3))) == ["a", "b", "c"]
    none = whole(pa.chunked_array([], pa.string()))
    assert list(prepared(none).take(np.arange(0))) == []
