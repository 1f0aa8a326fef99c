"""Packed strings are read back unchanged."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.memory.sharing import records
from feedline.memory.sharing.packed import Packed
from tests.sampling import examples

ODD_NAMES = [
    "",
    "a",
    "a\0",
    "\0",
    "\udcff\udc80x",
    "\ud800",
    "ä" * 300,
    "x" * 70_000,
    "日本/語.jpg",
    "a\nb",
    "é",
    "e\u0301",
]
words = st.one_of(st.text(st.characters(), max_size=12), st.sampled_from(ODD_NAMES))
some = st.builds(lambda parts, count: parts * count, st.lists(words, max_size=20), st.integers(1, 9))


def paths(count: int) -> list[str]:
    return [f"/data/train/class-{number // 100:04d}/image-{number:09d}.jpeg" for number in range(count)]


@pytest.mark.parametrize("is_text", [True, False])
@settings(max_examples=examples(60))
@given(data=st.data())
def test_values_are_read_back_unchanged(is_text: bool, data: st.DataObject) -> None:
    values = data.draw(some if is_text else st.lists(st.binary(max_size=40), max_size=80))
    packed = Packed(values, is_text=is_text)
    assert len(packed) == len(values)
    assert [packed.get(place) for place in range(len(values))] == values
    assert list(packed.each(range(len(values)))) == values
    assert list(packed.each(range(len(values))[3:-2])) == values[3:-2]
    assert list(packed.each(range(len(values))[::-3])) == values[::-3]


@pytest.mark.parametrize("shuffled", [False, True])
def test_paths_take_a_fifth_of_a_list_in_any_order(shuffled: bool) -> None:
    values = paths(50_000)
    if shuffled:
        np.random.default_rng(0).shuffle(values)
    listed = sum(8 + value.__sizeof__() for value in values)
    packed = Packed(values, is_text=True)
    assert packed.nbytes * 5 < listed
    assert [packed.get(place) for place in range(0, 50_000, 11)] == values[::11]


def test_packed_strings_can_be_pickled_and_stored() -> None:
    values = paths(1000)[::-1]
    np.random.default_rng(1).shuffle(values)
    for packed in (Packed(values, is_text=True), Packed(sorted(values), is_text=True)):
        expected = list(packed.each(range(1000)))
        for other in (
            pickle.loads(pickle.dumps(packed)),
            Packed.of_arrays(records.decode(records.encode(packed.arrays()))),
        ):
            assert list(other.each(range(1000))) == expected
            assert other.nbytes == packed.nbytes
