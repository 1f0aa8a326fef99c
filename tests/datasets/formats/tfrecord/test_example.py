"""tf.train.Example: every kind of feature, damage, and a comparison with protobuf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.formats.tfrecord.example import SequenceExample, parse_example
from feedline.errors import CorruptSource
from feedline.testing.asserting import assert_same
from tests.datasets.formats.tfrecord.records import example, feature, field

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(lambda values: np.array(values, np.int64))
FLOATS = st.lists(st.floats(width=32), max_size=20).map(lambda values: np.array(values, np.float32))
BYTES = st.one_of(st.binary(), st.lists(st.binary(), max_size=4).filter(lambda values: len(values) != 1))
FEATURES = st.dictionaries(st.text(), st.one_of(INTEGERS, FLOATS, BYTES), max_size=5)


@given(features=FEATURES, packed=st.booleans())
def test_features_equal_what_was_written(features: dict[str, object], packed: bool) -> None:
    assert_same(parse_example(example(features, packed=packed)), features)


def test_arrays_are_writable() -> None:
    found = parse_example(example({"a": np.arange(30), "b": np.ones(3, np.float32)}))
    for value in found.values():
        assert isinstance(value, np.ndarray)
        value[:] = 7


def test_repeated_and_unknown_fields_follow_the_rules_of_protobuf() -> None:
    one, two = np.array([1, 2]), np.array([3])
    joined = feature(one) + feature(two)
    entry = field(1, b"a") + field(2, joined)
    found = parse_example(field(1, field(1, entry)) + field(9, b"later") + b"\x50\x07")
    assert_same(found, {"a": np.array([1, 2, 3])})
    last = field(1, b"a") + field(2, feature(one) + feature(b"x"))
    assert parse_example(field(1, field(1, last))) == {"a": b"x"}
    again = field(1, field(1, entry)) + field(1, field(1, field(1, b"a") + field(2, feature(b"new"))))
    assert parse_example(again) == {"a": b"new"}
    assert parse_example(field(1, field(1, field(1, b"a")))) == {"a": []}
    assert parse_example(b"") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0b",
        b"\x0a",
        b"\x80" * 11,
        field(1, field(1, field(1, b"\xff") + field(2, feature(b"x")))),
        field(1, field(1, field(2, field(3, b"\x0d1234")))),
        field(1, field(1, field(2, field(2, field(1, b"123"))))),
        field(1, field(1, field(2, field(3, field(1, b"\x80" * 30))))),
        field(1, field(1, field(2, field(3, field(1, b"\x80" * 11 + b"\0" * 9))))),
    ],
)
def test_malformed_messages_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptSource, match=r"tf\.train\.Example"):
        parse_example(data)


def test_sequence_examples_are_recognised() -> None:
    with pytest.raises(SequenceExample):
        parse_example(field(2, b""))
