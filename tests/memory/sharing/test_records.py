"""Samples as bytes: they are decoded exactly, and invalid bytes are rejected."""

from __future__ import annotations

import math
from collections import OrderedDict
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feedline.errors import CorruptSource
from feedline.memory.sharing.records import NotARecord, decode, encode
from feedline.testing.source import assert_same

dtypes = (
    arrays.scalar_dtypes()
    | arrays.byte_string_dtypes(min_len=1, max_len=5)
    | arrays.unicode_string_dtypes(min_len=1, max_len=5)
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | arrays.arrays(dtypes, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
samples = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(samples | st.text('adlt"0', min_size=1, max_size=4))  # strings that look like the start of a record
@example("dog")
@example("d12")
def test_decoding_returns_the_encoded_sample(sample: Any) -> None:
    assert_same(decode(encode(sample)), sample)


@given(samples, st.data())
def test_rejects_a_truncated_record(sample: Any, data: st.DataObject) -> None:
    record = encode(sample)
    end = data.draw(st.integers(0, max(0, len(record.rstrip(b"\0")) - 1)))
    try:
        found = decode(record[:end])
    except CorruptSource:
        return
    assert_same(found, sample)  # only padding, or zeros at the very end, are missing


@given(st.binary())
@example(b"FDL1")
@example(b"FDL1\xff\xff\xff\xff")
@example(b'FDL1\x0b\0\0\0["x",1,"y"]')
@example(b'FDL1\x10\0\0\0["a","|O",[1]]  ')
@example(b'FDL1\x18\0\0\0["a","<f8",[-1,-1]]      ')
@example(b'FDL1\x18\0\0\0["a","<f8",[9999999999]] ')
@example(b'FDL1\x0b\0\0\0["b",-100] ')
def test_rejects_bytes_that_are_not_a_record(data: bytes) -> None:
    with pytest.raises(CorruptSource):
        decode(data)


@given(samples, st.data())
def test_a_flipped_bit_changes_values_or_is_rejected(sample: Any, data: st.DataObject) -> None:
    record = bytearray(encode(sample))
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(bytes(record))
    except CorruptSource:
        return


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.bool_, np.uint64, np.complex64])
def test_numpy_scalars_stay_scalars(kind: type[np.generic]) -> None:
    found = decode(encode(kind(1)))
    assert type(found) is kind
    assert found == kind(1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.empty(0, 4),
        torch.arange(12).reshape(3, 4).T,
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_tensors_are_decoded_as_tensors(tensor: torch.Tensor) -> None:
    found = decode(encode({"x": tensor}))["x"]
    assert type(found) is torch.Tensor
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(found, tensor)
    found[...] = 0  # it owns its memory


def test_arrays_are_read_only_views() -> None:
    record = np.frombuffer(encode({"x": np.arange(1000)}), np.uint8)
    found = decode(record)["x"]
    assert np.shares_memory(found, record)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_special_floats_are_kept() -> None:
    found = decode(encode([math.nan, math.inf, -math.inf, -0.0, 1e308, 5.0]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, -0.0, 1e308, 5.0]
    assert math.copysign(1, found[3]) == -1
    assert all(type(number) is float for number in found)


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"a": [1, {"b": Fraction(1, 2)}]}, ["sample['a'][1]['b']", "Fraction"]),
        ({1: 2}, ["int", "strings as keys"]),
        (Point(1), ["Point", "dict, list or tuple"]),
        (OrderedDict(a=1), ["OrderedDict", "dict"]),
        (np.array([object()]), ["object"]),
        (np.zeros(2, [("x", "f4")]), ["x", "numbers or strings"]),
        (torch.eye(2).to_sparse(), ["ordinary tensor"]),
        (torch.nn.Parameter(torch.ones(1)), ["Parameter"]),
    ],
)
def test_the_error_names_values_that_a_record_cannot_contain(sample: Any, words: list[str]) -> None:
    with pytest.raises(NotARecord) as caught:
        encode(sample)
    for word in words:
        assert word in str(caught.value)


def header_of(record: bytes) -> bytes:
    return record[8 : 8 + int.from_bytes(record[4:8], "little")]


@pytest.mark.parametrize("form", [dict, tuple])
def test_samples_that_differ_only_in_values_have_the_same_header(form: type) -> None:
    """This makes reading them fast: the header is parsed once."""
    both = [
        {"x": np.full((2, 3), number), "label": number, "score": number / 7, "name": f"n{number}", "raw": b"ab"}
        for number in (3, 7)
    ]
    samples = both if form is dict else [tuple(sample.values()) for sample in both]
    one, other = map(encode, samples)
    assert header_of(one) == header_of(other)
    for _ in range(3):  # parsed completely, then compiled, then read directly
        for record, sample in zip((one, other), samples, strict=True):
            assert_same(decode(record), sample)


def test_records_of_an_older_format_can_be_read() -> None:
    header = b'["d",["x","label","score","name"],[["a","<i2",[2]],7,0.5,"n"]]'
    record = b"FDL1" + len(header).to_bytes(4, "little") + header + bytes(-len(header) % 8) + b"\1\0\2\0\0\0\0\0"
    for _ in range(3):
        sample = decode(record)
        assert sample["x"].tolist() == [1, 2]
        assert (sample["label"], sample["score"], sample["name"]) == (7, 0.5, "n")


@pytest.mark.parametrize(
    "value", [1 << 63, -(1 << 63) - 1, (1 << 63) - 1, -(1 << 63), -0.0, float("inf"), "", "\ud800", "ä"]
)
def test_unusual_values_of_fields_are_kept(value: Any) -> None:
    for sample in ({"a": value, "b": 1}, (value, 2)):
        for _ in range(3):
            assert_same(decode(encode(sample)), sample)
    assert np.isnan(decode(encode({"a": float("nan")}))["a"])


def test_arrays_over_owned_memory_are_writeable() -> None:
    for sample in ({"x": np.arange(3)}, [np.arange(3)]):
        for _ in range(3):
            found = decode(bytearray(encode(sample)), owned=True)
            (array,) = found.values() if isinstance(found, dict) else found
            array[0] = 7
            assert array.tolist() == [7, 1, 2]


@pytest.mark.parametrize(
    "header",
    [
        b'["T","float32",[1000000000000]]',  # a tensor of terabytes
        b'["T","float32",[-1]]',
        b'["a","<f4,(",[1]]',  # NumPy raises a SyntaxError
        b'["a","|V0",[1000000000000]]',
        b"[" * 100_000,  # a RecursionError
        b'["a","<f4",[36893488147419103232]]',
    ],
)
def test_errors_of_libraries_about_a_damaged_header_become_corrupt_source(header: bytes) -> None:
    record = b"FDL1" + len(header).to_bytes(4, "little") + header
    for _ in range(3):  # repeated headers are read in another way
        with pytest.raises(CorruptSource, match="damaged or cut off"):
            decode(record + bytes(64))
