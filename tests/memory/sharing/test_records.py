"""Samples as bytes: they are decoded exactly, and invalid bytes are rejected."""

from __future__ import annotations

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
from feedline.testing.asserting import assert_same

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


@pytest.mark.parametrize("text", ["", "a\0", "ab\0\0", "\0", "\U0001f600\0", "\ud800\0"])
def test_scalars_keep_their_trailing_zeros(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    one, other, number = decode(encode([np.bytes_(data), np.str_(text), np.int16(7)]))
    assert number == 7
    assert (type(one), bytes(one)) == (np.bytes_, data)
    assert (type(other), "".join(other)) == (np.str_, text)


@given(samples, st.data())
def test_rejects_a_truncated_record(sample: Any, data: st.DataObject) -> None:
    record = encode(sample)
    end = data.draw(st.integers(0, max(0, len(record.rstrip(b"\0")) - 1)))
    try:
        found = decode(record[:end])
    except CorruptSource:
        return
    assert_same(found, sample)  # only padding, or zeros at the very end, are missing


@given(samples, st.data())
def test_a_flipped_bit_changes_values_or_is_rejected(sample: Any, data: st.DataObject) -> None:
    record = bytearray(encode(sample))
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(bytes(record))
    except CorruptSource:
        return


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
