"""Shared values look like the originals, also in workers."""

from __future__ import annotations

import enum
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.memory.sharing import SharedDict, SharedList
from feedline.testing.asserting import assert_same
from tests.sampling import examples


class Point(NamedTuple):
    x: int
    name: str


LISTS: dict[str, Any] = {
    "empty": [],
    "strings": ["a", "", "ä", "\udcff.jpg", "a" * 1000],
    "arrays": [np.arange(3), np.arange(3, 6)],
    "arrays of different shapes": [np.arange(3), np.zeros((2, 2)), np.array(7, np.int8)],
    "large arrays": [np.zeros(100_000), np.zeros(3)],
    "named tuples": [Point(1, "a"), Point(2, "b")],
    "long lists": [[f"{number}" for number in range(1500)], list(range(2000))],
    "everything": ["a", 1, None, [1, "b"], {"c": np.arange(2)}, b"d", (1,)],
}
NOT_COMPARABLE = "arrays", "arrays of different shapes", "large arrays", "everything"
"""As lists with arrays in them."""

DICTS: dict[str, Any] = {
    "empty": {},
    "mixed keys": {"a": 1, 2: "b", None: 3, b"c": 4, 1.5: 5},
    "splits": {"train": [f"{number}.jpg" for number in range(1200)], "test": ["x.jpg"], "classes": {"cat": 0}, "n": 3},
    "long dicts": {"a": {str(number): number for number in range(1500)}, "b": {"x": 1}},
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_looks_like_the_original(name: str, kind: type) -> None:
    values: list[Any] = LISTS[name]
    original = kind(values)
    shared = feedline.share(original)
    assert isinstance(shared, SharedList)
    assert isinstance(shared, Sequence)
    for one in (shared, pickle.loads(pickle.dumps(shared)), shared[:], shared[::-1][::-1]):
        assert len(one) == len(original)
        for index in range(-len(original), len(original)):
            assert_alike(one[index], original[index])
        assert_alike(list(one), list(original))
        assert_alike(list(reversed(one)), list(reversed(original)))
        if name not in NOT_COMPARABLE:
            assert one == original
            assert original == one
            assert one == shared
    for part in (slice(1, None), slice(None, -1), slice(None, None, -1), slice(5, 2), slice(0, 100, 2)):
        assert_alike(list(shared[part]), list(original[part]))
    assert shared != (tuple(values) if kind is list else values)
    assert shared != [*original, 1]
    with pytest.raises(IndexError, match=str(len(original))):
        shared[len(original)]
    assert f"{len(original)} values" in repr(shared)


@pytest.mark.parametrize("original", DICTS.values(), ids=DICTS)
def test_a_dict_looks_like_the_original(original: dict[Any, Any]) -> None:
    shared = feedline.share(original)
    assert isinstance(shared, SharedDict)
    assert isinstance(shared, Mapping)
    for one in (shared, pickle.loads(pickle.dumps(shared))):
        assert list(one) == list(original)
        assert list(one.keys()) == list(original.keys())
        for key, value in original.items():
            assert_alike(one[key], value)
            assert key in one
            assert_alike(one.get(key), value)
        assert_alike(list(one.values()), list(original.values()))
        assert_alike(list(one.items()), list(original.items()))
        assert one == original
        assert original == one
        assert one != {**original, "more": 1}
    absent: tuple[Any, ...] = ("no", 77, ("a", 2), b"b", None if None not in original else 0.25, frozenset())
    for missing in absent:
        assert missing not in shared
        with pytest.raises(KeyError):
            shared[missing]
    with pytest.raises(TypeError, match="unhashable"):
        shared[[]]
    assert f"{len(original)} keys" in repr(shared)


def assert_alike(found: Any, expected: Any) -> None:
    """Compare as plain values, since nested long lists are shared themselves."""
    assert_same(plain(found), plain(expected))


def plain(value: Any) -> Any:
    if isinstance(value, (dict, SharedDict)):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, SharedList):
        return [plain(one) for one in value]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(plain(one) for one in value)
    return value


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=12,
)


keys = st.one_of(
    st.integers(),
    st.text(st.characters(), max_size=4),
    st.binary(max_size=4),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
)


@settings(max_examples=examples(50))
@given(original=st.dictionaries(keys, nested, max_size=12), other=keys)
def test_any_dict_and_any_list_is_read_back_unchanged(original: dict[Any, Any], other: Any) -> None:
    values = list(original.values())
    assert feedline.share(values) == values
    assert_alike(list(feedline.share(values)), values)
    shared = feedline.share(original)
    assert_alike(dict(shared.items()), original)
    assert all(shared[key] == value for key, value in original.items())
    assert (other in shared) == (other in original)


def test_keys_with_the_same_checksum_are_distinguished() -> None:
    # crc32("plumless") == crc32("buckeroo")
    shared = feedline.share({"plumless": 1, "buckeroo": 2})
    assert (shared["plumless"], shared["buckeroo"]) == (1, 2)
    assert "buckeroo" not in feedline.share({"plumless": 1})


def test_values_are_returned_as_copies() -> None:
    shared = feedline.share([np.zeros(3), np.ones(3)])
    shared[0][:] = 7
    assert shared[0].tolist() == [0, 0, 0]
    shared = feedline.share([{"x": np.zeros(2)}, {"y": [1]}])
    shared[0]["x"][:] = 7
    assert shared[0]["x"].tolist() == [0, 0]
    with pytest.raises(TypeError, match="item assignment"):
        shared[0] = 1


class Color(enum.Enum):
    RED = 1


def test_values_that_cannot_be_stored_and_keys_whose_hash_differs_between_processes_are_rejected() -> None:
    assert feedline.share([Color.RED, 1])[0] is Color.RED
    for values in ([threading.Lock(), 1], {"a": lambda: 1}, {Color.RED: 1}, {("a", Color.RED): 1}, "text", 5):
        with pytest.raises(TypeError):
            feedline.share(values)


@pytest.mark.parametrize("travels", [False, True])
def test_large_arrays_of_different_shapes_are_not_copied_and_cannot_be_written_to(travels: bool) -> None:
    originals = [np.zeros(20_000), np.zeros(30_000), np.zeros(10)]
    shared = feedline.share(originals)
    assert np.shares_memory(shared[0], originals[0])
    if travels:
        shared = pickle.loads(pickle.dumps(shared, 5))
    for array in (*shared[:2], feedline.share({"a": originals[0], "b": originals[2]})["a"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    originals[0][0] = 1  # the originals can still be written to
    assert originals[0].flags.writeable


def test_short_values_next_to_long_ones_do_not_change_after_sharing() -> None:
    tensor, array, names, classes = torch.zeros(3), np.zeros(3), ["cat"], {0: "cat", (1, 2): "dog"}
    values = {"paths": list(range(2000)), "t": tensor, "a": array, "names": names, "classes": classes, "none": None}
    shared = feedline.share(values)
    for change in (shared["t"], shared["a"], tensor, array):  # the values read, and the originals
        change[0] = 7
    shared["names"].append("dog")
    names.append("cow")
    classes[5] = "fish"
    assert shared["t"].tolist() == shared["a"].tolist() == [0, 0, 0]
    assert type(shared["t"]) is torch.Tensor
    assert (shared["names"], shared["classes"], shared["none"]) == (["cat"], {0: "cat", (1, 2): "dog"}, None)
