import tarfile
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.tar.headers import BadHeader, Header


def header(**changes: object) -> bytes:
    info = tarfile.TarInfo("a.txt")
    for name, value in changes.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT)[:512]


def with_checksum(block: bytes) -> bytes:
    block = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.integers(0, 8**11 - 1) | st.integers(8**11, 2**70),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
    st.sampled_from([b"0", b"7", b"5", b"1", b"2", b"3", b"A"]),
)
def test_a_block_says_what_tarfile_says_it_says(name: str, size: int, form: Literal[0, 1], kind: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    if form == tarfile.USTAR_FORMAT and size >= 8**11:
        return
    try:
        block = info.tobuf(form)[-512:]
    except (ValueError, UnicodeEncodeError):
        return
    expected = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    found = Header(block)
    assert found.size == expected.size
    assert found.is_file == expected.isreg()
    if not expected.isdir():
        assert found.name == expected.name


@given(st.binary(min_size=512, max_size=512), st.booleans())
def test_no_bytes_lead_to_anything_but_a_header_or_an_error(block: bytes, has_checksum: bool) -> None:
    try:
        found = Header(with_checksum(block) if has_checksum else block)
    except BadHeader:
        return
    assert found.size >= 0
    assert isinstance(found.name, str)


@given(st.integers(0, 511), st.integers(1, 255))
def test_a_byte_that_changed_is_noticed(place: int, change: int) -> None:
    block = bytearray(header(size=5))
    before = Header(bytes(block))
    block[place] = (block[place] + change) % 256
    try:
        after = Header(bytes(block))
    except BadHeader:
        return
    # The checksum field itself has room for other spellings of the same number.
    assert 148 <= place < 156
    assert (after.name, after.size, after.kind) == (before.name, before.size, before.kind)


def test_checksums_of_all_spellings() -> None:
    block = header(name="ä" * 20)
    total = sum(block[:148] + b" " * 8 + block[156:])
    signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + b" " * 8 + block[156:])
    for text in (b"%06o\0 " % total, b"%07o\0" % total, b"%6o \0" % total, b"%06o\0 " % signed, b"%08o" % total):
        assert Header(block[:148] + text + block[156:]).name == "ä" * 20
    with pytest.raises(BadHeader, match="checksum"):
        Header(block[:148] + b"%06o\0 " % (total + 1) + block[156:])


def test_sizes_of_all_spellings() -> None:
    block = header()
    for text, size in (
        (b"00000000017\0", 15),
        (b"000000000017", 15),
        (b"777777777777", 8**12 - 1),
        (b"         17\0", 15),
        (b"17\0         ", 15),
        (b"\x80" + (9 * 2**33).to_bytes(11, "big"), 9 * 2**33),
        (b"\0" * 12, 0),
    ):
        assert Header(with_checksum(block[:124] + text + block[136:])).size == size


@pytest.mark.parametrize("size", [b"\xff" * 12, b"-0000000017\0", b"\xff" + b"\0" * 11])
def test_negative_sizes_are_refused(size: bytes) -> None:
    block = header()
    with pytest.raises(BadHeader, match="its size is -"):
        Header(with_checksum(block[:124] + size + block[136:]))


def test_numbers_that_are_none() -> None:
    block = header()
    with pytest.raises(BadHeader, match="a number in it is none"):
        Header(with_checksum(block[:124] + b"hello world\0" + block[136:]))


def test_sparse_files_are_refused() -> None:
    with pytest.raises(BadHeader, match="sparse"):
        Header(header(type=b"S"))


def test_prefixes_and_directories_of_old_archives() -> None:
    name = "/".join(["folder"] * 20) + "/a.txt"
    info = tarfile.TarInfo(name)
    assert Header(info.tobuf(tarfile.USTAR_FORMAT)).name == name
    block = with_checksum(header(name="folder/")[:156] + b"\0" + header()[157:])
    assert not Header(with_checksum(b"folder/".ljust(100, b"\0") + block[100:])).has_content
