"""The index of a sample as a plain value."""

from __future__ import annotations

import enum
import json
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadState
from feedline.indices import index_key, pack_index, plain_index, unpack_index
from tests.names import named

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.integers(-(2**63), 2**63 - 1).map(np.int64)
    | st.integers(0, 2**16 - 1).map(np.uint16)
    | st.floats(width=32).map(np.float32)
    | st.lists(st.integers(0, 9), max_size=4).map(np.array)
    | st.builds(slice, st.integers(0, 9), st.integers(0, 9))
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
indices = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple), max_leaves=6
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@given(indices)
def test_a_plain_index_is_plain_and_stays_as_it_is(index: Any) -> None:
    plain = plain_index(index)
    assert is_plain(plain)
    assert repr(plain_index(plain)) == repr(plain)


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(index=indices)
def test_an_index_is_recognised_after_it_was_saved(through: Any, index: Any) -> None:
    again = unpack_index(through(pack_index(index)))
    assert repr(again) == repr(plain_index(index)), "types included"
    assert index_key(again) == index_key(index)
    assert hash(index_key(again)) == hash(index_key(index))


@given(indices)
def test_an_index_is_recognised_after_it_was_sent(index: Any) -> None:
    assert index_key(through_pickle(index)) == index_key(index)


def is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Place(NamedTuple):
    shard: int
    row: Any


class Bare:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.str_("cat"), "cat"),
        (np.float64(0.5), 0.5),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (torch.tensor([3]), [3]),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Place(1, np.int64(2)), (1, 2)),
        (float("nan"), "nan"),
        (np.float32("inf"), "inf"),
        ({"shard": 1}, "{'shard': 1}"),
        (np.datetime64("2020-01-01"), repr(np.datetime64("2020-01-01"))),
        (np.longdouble(0.5), repr(np.longdouble(0.5))),
        (Bare(shard=1, row=2), f"{__name__}.Bare(shard=1, row=2)"),
    ],
    ids=named,
)
def test_what_becomes_of_an_index(index: Any, plain: Any) -> None:
    found = plain_index(index)
    assert found == plain
    assert type(found) is type(plain)


def test_large_arrays_are_told_apart() -> None:
    one, other = np.zeros(5000, int), np.zeros(5000, int)
    other[2500] = 1
    assert index_key(one) != index_key(other), "their reprs are the same"


def test_an_index_that_cannot_be_shown_is_no_failure_of_its_own() -> None:
    assert "Unshowable object at" in plain_index(Unshowable())


@pytest.mark.parametrize(
    "packed",
    [
        {"tuple": 3},
        {"tuple": [1], "more": 2},
        {"bytes": "xyz"},
        {"bytes": 3},
        {},
        {"set": [1]},
        b"x",
        [{"tuple": [object()]}],
    ],
    ids=named,
)
def test_a_damaged_index(packed: Any) -> None:
    with pytest.raises(BadState, match=r"damaged: .* is no index of a sample"):
        unpack_index(packed)
