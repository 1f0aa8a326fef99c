from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.packing.digest import START, chained, digest_of

pytestmark = pytest.mark.sample(5)

ALIKE: list[tuple[Any, Any]] = [
    (3, np.int64(3)),
    (3, np.uint8(3)),
    (3, np.array(3)),
    (3, 3.0),
    (True, 1),
    ("a", np.str_("a")),
    (b"a", bytearray(b"a")),
    (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3)),
    (float("nan"), np.float32("nan")),
    ([1, 2], (1, 2)),
    (np.float32(0.1), float(np.float32(0.1))),
]
APART: list[tuple[Any, Any]] = [
    (3, "3"),
    ("a", b"a"),
    (0.0, -0.0),
    (None, ""),
    (None, 0),
    (0.1, np.float32(0.1)),
    (np.zeros(3), np.zeros(3, np.float32)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.zeros(0), np.zeros((0, 1))),
    ([1, [2]], [[1], 2]),
    (["ab", "c"], ["a", "bc"]),
    (1, 1j),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (np.datetime64(1, "D"), np.datetime64(1, "s")),
    (2**64, 2**64 + 1),
    (np.array(["ab", "c"]), np.array(["a", "bc"])),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_counts_as_equal(one: Any, other: Any) -> None:
    assert digest_of({"x": one}) == digest_of({"x": other})


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_counts_as_different(one: Any, other: Any) -> None:
    assert digest_of({"x": one}) != digest_of({"x": other})


@given(st.lists(st.binary(max_size=8), max_size=20), st.integers(0, 20))
def test_a_chain_goes_on_from_anywhere(parts: list[bytes], place: int) -> None:
    digests = [digest_of({"x": part}) for part in parts]
    assert chained(START, digests) == chained(chained(START, digests[:place]), digests[place:])


@given(st.lists(st.integers(0, 5), min_size=2, max_size=10).filter(lambda numbers: numbers != sorted(numbers)))
def test_the_order_counts(numbers: list[int]) -> None:
    digests = [digest_of({"x": number}) for number in numbers]
    assert chained(START, digests) != chained(START, sorted(digests)) or digests == sorted(digests)
