"""Samples as bytes."""

import pickle

import numpy as np
import pytest

from feedline.datasets.cache.codec import decode, encode
from feedline.datasets.cache.vault import Found, Kind
from feedline.errors import CorruptSource
from feedline.records import NotARecord


def test_arrays_of_ones_own_bytes_can_be_written_to() -> None:
    kind, data = encode({"a": [np.zeros(3), (np.ones((2, 2)),)]}, pickles=False)
    sample = decode(Found(kind, bytearray(data)), pickles=False)
    sample["a"][0][:] = 5
    sample["a"][1][0][:] = 6
    shared = decode(Found(kind, memoryview(data)), pickles=False)
    assert not shared["a"][0].flags.writeable
    assert shared["a"][0].tolist() == [0, 0, 0]


def test_pickles_are_neither_written_nor_read_unless_asked_for() -> None:
    with pytest.raises(NotARecord, match="runs code"):
        encode({1, 2}, pickles=False)
    kind, data = encode({1, 2}, pickles=True)
    assert kind is Kind.PICKLE
    assert decode(Found(kind, bytearray(data)), pickles=True) == {1, 2}
    with pytest.raises(CorruptSource, match="pickle=True was not given"):
        decode(Found(kind, bytearray(data)), pickles=False)


def test_what_a_record_can_hold_is_never_pickled() -> None:
    kind, data = encode([1, "two"], pickles=True)
    assert kind is Kind.RECORD
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(data)


def test_nonsense_is_no_sample() -> None:
    with pytest.raises(CorruptSource):
        decode(Found(Kind.RECORD, bytearray(b"nonsense")), pickles=False)
