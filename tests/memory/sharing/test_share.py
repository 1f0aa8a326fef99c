"""Shared values look like the originals, also in workers."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.memory.sharing import SharedDict, SharedList
from feedline.testing.source import assert_same
from tests.sampling import examples


class Point(NamedTuple):
    x: int
    name: str


LISTS: dict[str, Any] = {
    "empty": [],
    "one": ["a"],
    "strings": ["a", "", "ä", "\udcff.jpg", "a" * 1000],
    "bytes": [b"", b"\0", b"abc"],
    "integers": [0, 255, -128, 2**62],
    "large integers": [2**64, -(2**70), 0],
    "booleans": [True, False, True],
    "floats": [0.0, -0.0, 1e-300, math.inf],
    "complex": [1 + 2j, 0j],
    "numbers of two types": [1, 2.0, True],
    "none": [None, None],
    "some none": [1, None, 3],
    "arrays": [np.arange(3), np.arange(3, 6)],
    "arrays of different shapes": [np.arange(3), np.zeros((2, 2)), np.array(7, np.int8)],
    "arrays of strings": [np.array(["a", "bc"]), np.array(["d", "ef"])],
    "large arrays": [np.zeros(100_000), np.zeros(3)],
    "numpy numbers": [np.float32(1.5), np.float32(2.5)],
    "numpy numbers of two types": [np.float32(1.5), np.int8(2)],
    "pairs": [("a.jpg", 1), ("b.jpg", 2)],
    "pairs of different lengths": [("a.jpg", 1), ("b.jpg",), ()],
    "empty tuples": [(), ()],
    "lists": [[1, 2], [], [3]],
    "lists of strings": [["a", "b"], ["c"]],
    "lists that are records": [["a", 1], ["b", 2]],
    "lists of lists": [[[1], [2, 3]], [], [[]]],
    "dicts": [{"file": "a", "label": 1, "box": [1, 2]}, {"file": "b", "label": 2, "box": []}],
    "dicts of different keys": [{"a": 1}, {"b": 2}, {}],
    "dicts with numbers as keys": [{1: "a", 2: "b"}, {1: "c", 2: "d"}],
    "named tuples": [Point(1, "a"), Point(2, "b")],
    "long lists": [[f"{number}" for number in range(1500)], list(range(2000))],
    "everything": ["a", 1, None, [1, "b"], {"c": np.arange(2)}, b"d", (1,)],
}
DICTS: dict[str, Any] = {
    "empty": {},
    "strings": {"b": 1, "a": 2},
    "numbers": {1: "a", 2: "b", -5: "c"},
    "tuples": {("a", 1): 1, ("b", 2): 2},
    "mixed keys": {"a": 1, 2: "b", None: 3, b"c": 4, 1.5: 5},
    "splits": {"train": [f"{number}.jpg" for number in range(1200)], "test": ["x.jpg"], "classes": {"cat": 0}, "n": 3},
    "nested": {"train": {"files": list("abc"), "labels": [1, 2, 3]}, "test": {"files": [], "labels": []}},
    "arrays": {"mean": np.zeros(3), "all": np.zeros((100, 1000))},
    "long dicts": {"a": {str(number): number for number in range(1500)}, "b": {"x": 1}},
}


@pytest.mark.parametrize("values", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_looks_like_the_original(values: list[Any], kind: type) -> None:
    original = kind(values)
    shared = feedline.share(original)
    assert isinstance(shared, SharedList)
    assert isinstance(shared, Sequence)
    for one in (shared, pickle.loads(pickle.dumps(shared)), shared[:], shared[::-1][::-1]):
        assert len(one) == len(original)
        for index in range(-len(original), len(original)):
            assert_alike(one[index], original[index])
        assert one == original
        assert original == one
        assert one == shared
        assert_alike(list(one), list(original))
        assert_alike(list(reversed(one)), list(reversed(original)))
    for part in (slice(1, None), slice(None, -1), slice(None, None, -1), slice(5, 2), slice(0, 100, 2)):
        assert shared[part] == original[part]
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


@settings(max_examples=examples(60))
@given(values=st.lists(nested, max_size=12))
def test_any_list_is_read_back_unchanged(values: list[Any]) -> None:
    shared = feedline.share(values)
    assert_alike(list(shared), values)
    assert shared == values


keys = st.one_of(
    st.integers(),
    st.text(st.characters(), max_size=4),
    st.binary(max_size=4),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
)


@settings(max_examples=examples(50))
@given(original=st.dictionaries(keys, nested, max_size=12), other=keys)
def test_any_dict_is_read_back_unchanged(original: dict[Any, Any], other: Any) -> None:
    shared = feedline.share(original)
    assert_alike(dict(shared.items()), original)
    assert all(shared[key] == value for key, value in original.items())
    assert (other in shared) == (other in original)


def test_keys_are_equal_as_in_a_dict() -> None:
    shared = feedline.share({1: "one", "a": "letter", 2.0: "two"})
    assert shared[1.0] == shared[True] == shared[np.int64(1)] == "one"
    assert shared[2] == "two"
    assert shared[np.str_("a")] == "letter"


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


def test_tensors_are_kept_as_tensors() -> None:
    shared = feedline.share([torch.arange(3), torch.ones(2, dtype=torch.bfloat16)])
    assert torch.equal(shared[0], torch.arange(3))
    assert shared[1].dtype is torch.bfloat16
    assert shared == [torch.arange(3), torch.ones(2, dtype=torch.bfloat16)]


def test_arrays_tensors_and_shared_values_are_returned_as_they_are() -> None:
    for value in (np.zeros(3), torch.zeros(3), feedline.share([1]), feedline.share({})):
        assert feedline.share(value) is value


def test_other_sequences_and_mappings_are_accepted() -> None:
    assert feedline.share(range(5)) == [0, 1, 2, 3, 4]
    assert feedline.share(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}


@pytest.mark.parametrize("value", ["text", b"bytes", 3, None, {1, 2}, iter([1])])
def test_other_types_are_rejected(value: Any) -> None:
    with pytest.raises(TypeError, match="takes a list, tuple or dict"):
        feedline.share(value)


def test_values_that_a_record_cannot_hold_are_rejected() -> None:
    for values in ([object()], [1, {"a": [object()]}], {"a": object()}, [np.array([object()], object)]):
        with pytest.raises(TypeError, match="object"):
            feedline.share(values)


@pytest.mark.parametrize("travels", [False, True])
def test_large_arrays_of_different_shapes_are_not_copied_and_cannot_be_written_to(travels: bool) -> None:
    originals = [np.zeros(20_000), np.zeros(30_000), np.zeros(10)]
    shared = feedline.share(originals)
    assert np.shares_memory(shared[0], originals[0])
    if travels:
        shared = pickle.loads(pickle.dumps(shared, 5))
    for array in (*shared, *feedline.share({"a": originals[0], "b": originals[2]}).values()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    originals[0][0] = 1  # the originals can still be written to
    assert originals[0].flags.writeable


def test_short_lists_next_to_long_ones_are_copies() -> None:
    shared = feedline.share({"train": list(range(2000)), "classes": ["cat", "dog"], "seed": 1})
    shared["classes"].append("cow")
    assert shared["classes"] == ["cat", "dog"]


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
    assert shared == {**values, "t": torch.zeros(3), "a": np.zeros(3), "names": ["cat"], "classes": shared["classes"]}


class Weights:
    """A dataset that writes to values that it reads from a shared dict."""

    def __init__(self) -> None:
        self.shared = feedline.share({"long": list(range(2000)), "weights": torch.zeros(3)})

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        weights = self.shared["weights"]
        before = float(weights[0])
        weights[0] += 1
        return before


@pytest.mark.parametrize("options", [{}, {"workers": 1, "engine": "thread"}, {"workers": 2, "engine": "process"}])
def test_writing_to_a_tensor_that_was_read_has_no_effect_elsewhere(options: dict[str, Any]) -> None:
    dataset = Weights()
    dataset.shared["weights"][0] = 9
    assert [batch.tolist() for batch in feedline.Loader(dataset, 2, **options)] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("odd", [{1, 2}, object()])
def test_values_that_cannot_be_shared_are_rejected_next_to_long_ones_too(odd: Any) -> None:
    with pytest.raises(TypeError, match="which a record cannot hold"):
        feedline.share([list(range(2000)), odd])
