from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

import cbor2
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from webdataset import tenbin as theirs

from feedline.datasets.formats.tar.arrays import decode_npy
from feedline.datasets.formats.tar.form import Decoder
from feedline.errors import BadOption, CorruptSource
from feedline.testing.asserting import assert_same
from tests.sampling import examples


# Any, throughout: values of any kind.
def decode(field: str, data: bytes, how: Any = True, *, limit: int = 1 << 20) -> Any:
    decoder = Decoder(how, trusts_pickle=False, limit=limit)
    return decoder.field({"__key__": "k", "__url__": "a.tar", field: data}, field, decoder.total())


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
@settings(deadline=None, max_examples=examples(60))
@given(
    arrays.arrays(
        st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes()),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    st.booleans(),
)
def test_arrays_equal_what_numpy_reads(array: Any, fortran: bool) -> None:
    data = npy(np.asfortranarray(array) if fortran and array.ndim else array)
    found, expected = decode_npy(data), np.load(io.BytesIO(data))
    assert found.tobytes() == expected.tobytes()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.flags.writeable
    assert found.flags.f_contiguous == expected.flags.f_contiguous


def changed_header(head: bytes, version: int = 1) -> bytes:
    length = len(head).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + head


def zipped() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        npy(np.zeros(10)).replace(b"(10,), }        ", b"(9999999999999,)}"),
        npy(np.zeros(10))[:-1],
        npy(np.zeros(10)) + b"x",
        npy(np.array([{}], object)),
        changed_header(b"{'descr': '<f8', 'shape': (3,"),  # NumPy raises a TokenError for it
        *(b"\x93NUMPY\x09", b"x" * 100, zipped()),
        *(
            changed_header(
                f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (3000000000,), }}\n".encode(), version
            )
            for descr, version in (("|S0", 1), ("|V0", 3), ("<U0", 3))
        ),
    ],
)
def test_rejects_npy_fields_that_are_no_whole_array(data: bytes) -> None:
    with pytest.raises(CorruptSource, match="field 'npy' of sample 'k'"):
        decode("npy", data)


def test_the_size_of_compressed_fields_is_limited() -> None:
    bomb = gzip.compress(bytes(1 << 22))
    with pytest.raises(CorruptSource, match=r"field 'bin\.gz' of sample 'k'.*max_field_bytes="):
        decode("bin.gz", bomb)
    assert len(decode("bin.gz", bomb, limit=1 << 22)) == 1 << 22
    assert decode("txt.gz", gzip.compress(b"a") + gzip.compress(b"b")) == "ab"
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(1 << 20))
    for field, data in (
        ("txt.gz", gzip.compress(b"hello")[:-4]),
        ("txt.gz", b"hello"),
        ("npz", file.getvalue()),
        ("npz", b"PK nonsense"),
    ):
        with pytest.raises(CorruptSource, match=field):
            decode(field, data)


def test_an_npz_that_lies_about_its_size() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(np.zeros(1 << 18)))
    data = bytearray(file.getvalue())
    place = data.rindex(b"PK\1\2") + 24
    data[place : place + 4] = (100).to_bytes(4, "little")
    with pytest.raises(CorruptSource):
        decode("npz", bytes(data))


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(
        arrays.arrays(
            st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8"]),
            arrays.array_shapes(min_dims=0),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_ten_fields_equal_what_the_webdataset_package_wrote(values: list[Any]) -> None:
    data = bytes(theirs.encode_buffer([np.ascontiguousarray(value).reshape(value.shape) for value in values]))
    assert_same(decode("ten", data), [value.copy() for value in values])


@pytest.mark.parametrize(
    ("field", "data"),
    [("cls", b"x"), ("json", b"{"), ("txt", b"\xff"), ("ten", b"no"), ("mp", b"\xc1"), ("cbor", b"\xff"), ("npy", b"")],
)
def test_the_error_names_a_field_that_does_not_match_its_suffix(field: str, data: bytes) -> None:
    with pytest.raises(CorruptSource, match=rf"a\.tar: field '{field}' of sample 'k'"):
        decode(field, data)
    assert decode(field, data, False) == data
    for suffix, packed in (("mp", msgpack.packb({"a": [1]})), ("cbor", cbor2.dumps({"a": [1]}))):
        assert decode(suffix, packed) == {"a": [1]}


def test_fields_of_unknown_types_stay_bytes() -> None:
    assert decode("bin", b"x") == decode("", b"x") == decode("jpg", b"x") == b"x"
    assert decode("__note__", "ä".encode()) == "ä"
    assert decode("__note__", b"\xff") == b"\xff"


def test_exceptions_of_user_functions_are_passed_through() -> None:
    def mine(name: str, data: bytes) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught:
        decode("txt", b"x", mine)
    assert any("field 'txt' of sample 'k'" in note for note in caught.value.__notes__)


def test_several_decoders_are_tried_in_order() -> None:
    def first(name: str, data: bytes) -> Any:
        return "first" if name == ".a" else None

    def second(name: str, data: bytes) -> Any:
        return "second"

    assert decode("a", b"x", [first, second]) == "first"
    assert decode("b", b"x", [first, second]) == "second"
    assert decode("json", json.dumps(1).encode(), [first]) == 1


@pytest.mark.parametrize("how", ["rgb9", 3, None, ["pil", "nonsense"], [3]])
def test_unknown_decoders_are_rejected(how: Any) -> None:
    with pytest.raises(BadOption, match="decode="):
        Decoder(how, trusts_pickle=False, limit=1)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_members_of_a_zip(save: Any) -> None:
    """Each byte belongs to an array, to a checksum, or to something that is never read."""
    file = io.BytesIO()
    save(file, a=np.arange(40), b=np.float32(1))
    data = file.getvalue()
    right = decode("npz", data)
    assert_same(right, {"a": np.arange(40), "b": np.array(1, np.float32)})
    refused = 0
    for place in range(0, len(data), 3):
        wrong = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        try:
            assert_same(decode("npz", wrong), right)
        except CorruptSource:
            refused += 1
    assert refused > len(data) // 6
    with pytest.raises(CorruptSource, match=r"list of members is not where it should be|no members are listed"):
        decode("npz", data[:-14] + bytes(14))
    shorter = io.BytesIO()
    with zipfile.ZipFile(shorter, "w") as archive:
        archive.writestr("a.npy", npy(np.arange(40)).replace(b"(40,)", b"(30,)"))
    with pytest.raises(CorruptSource, match="more bytes than it has"):
        decode("npz", shorter.getvalue())


def test_the_size_of_a_pth_field_is_limited_too() -> None:
    plain, bomb = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(1 << 19), plain)
    with zipfile.ZipFile(plain) as read, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as written:
        for entry in read.infolist():
            written.writestr(entry.filename, read.read(entry))
    assert len(bomb.getvalue()) < 1 << 14
    with pytest.raises(CorruptSource, match=r"zip archive takes 209\d+ bytes.*max_field_bytes="):
        decode("pth", bomb.getvalue())
    assert decode("pth", bomb.getvalue(), limit=1 << 22).shape == (1 << 19,)


def test_the_total_size_of_the_fields_of_a_sample_is_limited() -> None:
    decoder = Decoder(True, trusts_pickle=False, limit=1 << 20)
    field = gzip.compress(bytes(600_000))
    sample = {"__key__": "k", "__url__": "a.tar", "a.gz": field, "b.gz": field}
    total = decoder.total()
    assert decoder.field(sample, "a.gz", total) == bytes(600_000)
    with pytest.raises(CorruptSource, match=r"field 'b\.gz'.*with the fields before it.*max_field_bytes="):
        decoder.field(sample, "b.gz", total)


def test_an_npz_that_lists_fewer_members_than_it_declares() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3), b=np.zeros(3))
    data = file.getvalue()
    end = data.rindex(b"PK\5\6")
    for wrong in (data[: end + 12] + bytes(4) + data[end + 16 :], data + bytes(100)):
        with pytest.raises(CorruptSource):
            decode("npz", wrong)
