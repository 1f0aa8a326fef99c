"""The index of a sample as a plain value."""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadState
from feedline.types.indices import index_key, pack_index, plain_index, taken, taken_each, unpack_index
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
def test_plain_index_returns_plain_values_and_is_idempotent(index: Any) -> None:
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
def test_indices_become_plain_values(index: Any, plain: Any) -> None:
    found = plain_index(index)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    "packed",
    [
        {"tuple": 3},
        {"bytes": "xyz"},
        {},
        [{"tuple": [object()]}],
    ],
    ids=named,
)
def test_rejects_a_damaged_index(packed: Any) -> None:
    with pytest.raises(BadState, match=r"damaged: .* is not a sample index"):
        unpack_index(packed)


# -- copies by value --


class Pair(NamedTuple):
    name: str
    places: list[int]


class Fancy(list[int]):
    name = "fancy"


@dataclasses.dataclass
class Crop:
    index: int
    box: list[int]


class Mark:
    """A hashable object without a copy of its own."""


class Stubborn(list[int]):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2], lambda value: value.append(3)),
    "list of lists": (lambda: [1, [2, [3]]], lambda value: value[1][1].append(4)),
    "tuple of lists": (lambda: (1, [2]), lambda value: value[1].append(3)),
    "named tuple": (lambda: Pair("a", [1]), lambda value: value.places.append(3)),
    "dict": (lambda: {"a": [1]}, lambda value: value["a"].append(3)),
    "set": (lambda: {1}, lambda value: value.add(2)),
    "array": (lambda: np.arange(3), lambda value: value.fill(7)),
    "array of objects": (lambda: np.array([[1], [2, 3]], dtype=object), lambda value: value[0].append(7)),
    "tensor": (lambda: torch.arange(3), lambda value: value.fill_(7)),
    "list of another class": (lambda: Fancy([1]), lambda value: value.append(3)),
    "dataclass": (lambda: Crop(1, [2]), lambda value: value.box.append(3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_taken_index_does_not_change_with_the_yielded_one(name: str) -> None:
    make, change = CHANGES[name]
    yielded = make()
    kept = taken(yielded)
    assert type(kept) is type(yielded)
    before = repr(kept)
    change(yielded)
    assert repr(kept) == before
    assert repr(yielded) != before


@pytest.mark.parametrize(
    "value", [3, "a", b"a", None, 2.5, range(3), np.int64(3), (1, "a"), (1, (2, 3)), Mark(), frozenset({1}), slice]
)
def test_immutable_indices_are_not_copied(value: Any) -> None:
    assert taken(value) is value


def test_indices_that_cannot_be_copied_are_used_directly() -> None:
    stubborn = Stubborn([1])
    assert taken(stubborn) is stubborn


def test_each_index_is_copied_when_it_is_yielded() -> None:
    buffer = [0]

    def numbers() -> Iterator[list[int]]:
        for buffer[0] in range(3):
            yield buffer

    assert taken_each(numbers()) == [[0], [1], [2]]
