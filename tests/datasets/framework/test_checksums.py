"""Checksums of blocks and of metadata."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.checksums import BlockSums, Checked, as_text, check_seal, from_text, sealed
from feedline.errors import CorruptSource


@given(pieces=st.lists(st.binary(max_size=20)), block=st.integers(1, 9))
def test_block_checksums_do_not_depend_on_the_pieces(pieces: list[bytes], block: int) -> None:
    sums = BlockSums(block)
    for piece in pieces:
        sums.add(piece)
    whole = b"".join(pieces)
    expected = [zlib.crc32(whole[start : start + block]) for start in range(0, len(whole), block)]
    assert sums.finish().tolist() == expected
    assert from_text(as_text(sums.finish())).tolist() == expected


def test_each_block_is_read_once_and_only_when_checked() -> None:
    data, read = [b"a", b"b", b"c"], list[int]()
    sums = [zlib.crc32(one) for one in data]
    sums[2] += 1

    def counted(block: int) -> bytes:
        read.append(block)
        return data[block]

    checked = Checked(sums, counted, "block {}".format)
    checked.check(np.array([1, 0, 1]))
    checked.check(np.array([0]))
    assert read == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptSource, match="block 2 is damaged"):
            checked.check(np.array([0, 2]))


@given(
    metadata=st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.floats(), st.lists(st.booleans()))),
    place=st.integers(0),
    bit=st.integers(0, 7),
)
def test_changed_metadata_is_detected_or_means_the_same(metadata: dict[str, object], place: int, bit: int) -> None:
    content = bytearray(json.dumps(sealed({"feedline": 1, **metadata})).encode())
    check_seal("a", bytes(content), is_own=True)
    before = json.loads(content)
    content[place % len(content)] ^= 1 << bit
    try:
        check_seal("a", bytes(content), is_own=True)
    except CorruptSource:
        return
    after = json.loads(content)
    for either in (before, after):
        either.pop("crc32", None)
    odd = {name for name in after if name not in before}
    assert len(odd) <= 1  # the name of the checksum itself
    assert json.dumps({name: value for name, value in after.items() if name not in odd}) == json.dumps(before)


@pytest.mark.parametrize("stored", ["", "a comment", "[1, 2]", '{"fields": 3}', b"\xff\xfe"])
def test_metadata_of_other_programs_is_not_checked(stored: str | bytes) -> None:
    check_seal("a", stored)
