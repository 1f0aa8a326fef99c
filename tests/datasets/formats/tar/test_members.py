import io
import tarfile
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.formats.tar.members import BadHeader, Header, Members
from feedline.datasets.storage.content import ByteReader
from feedline.errors import CorruptSource
from tests.datasets.formats.tar.writing import tar_bytes

FORMATS = [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT]


def members_of(data: bytes, chunk: int = 1000, *, packed: bool = False, limit: int = 1 << 30) -> Members:
    places = iter(range(0, len(data), chunk))

    def next_chunk() -> bytes:
        start = next(places, None)
        return b"" if start is None else data[start : start + chunk]

    return Members(ByteReader(next_chunk), "a.tar", size=None if packed else len(data), limit=limit)


def read_all(data: bytes, chunk: int = 1000, *, every: int = 1) -> list[tuple[str, bytes]]:
    members = members_of(data, chunk)
    found: list[tuple[str, bytes]] = []
    while members.advance():
        content = members.read() if len(found) % every == 0 else data[members.offset : members.offset + members.size]
        assert content == data[members.offset : members.offset + members.size]
        found.append((members.name, content))
    assert not members.advance()
    return found


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=200).filter(
    lambda name: not name.endswith("/")
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(names, st.binary(max_size=1300)), max_size=8),
    st.sampled_from(FORMATS),
    st.integers(1, 3000),
    st.integers(1, 3),
)
def test_finds_the_same_files_as_tarfile(files: list[tuple[str, bytes]], form: int, chunk: int, every: int) -> None:
    try:
        data = tar_bytes(files, format=form)
    except ValueError:
        return  # the format cannot hold these names
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = [(info.name, archive.extractfile(info).read()) for info in archive if info.isreg()]  # type: ignore[union-attr]
    assert read_all(data, chunk, every=every) == expected


def test_only_ordinary_files_count() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"odd-{kind.decode()}.txt")
            info.type, info.linkname, info.size = kind, "a.txt", 0
            file.addfile(info)
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        file.addfile(info, io.BytesIO(b"hello"))
    assert read_all(buffer.getvalue()) == [("a.txt", b"hello")]


def test_directories_and_links_have_no_content_even_if_they_declare_a_size() -> None:
    info = tarfile.TarInfo("folder.txt")
    info.type, info.size = tarfile.SYMTYPE, 5000
    data = info.tobuf(tarfile.GNU_FORMAT) + tar_bytes([("a.txt", b"hello")])
    assert read_all(data) == [("a.txt", b"hello")]


def test_sizes_and_names_in_pax_records_are_used() -> None:
    info = tarfile.TarInfo("short")
    info.size = 3
    info.pax_headers = {"path": "ä/long.txt", "size": "5", "comment": "nothing"}
    data = info.tobuf(tarfile.PAX_FORMAT) + b"hello".ljust(512, b"\0") + bytes(1024)
    assert read_all(data) == [("ä/long.txt", b"hello")]


def test_global_pax_records() -> None:
    first = tarfile.TarInfo.create_pax_global_header({"comment": "x", "size": "5"})
    info = tarfile.TarInfo("a.txt")
    info.size = 3
    data = first + info.tobuf(tarfile.GNU_FORMAT) + b"hello".ljust(512, b"\0") + bytes(1024)
    members = members_of(data)
    assert members.advance()
    assert members.read() == b"hello"
    assert not members.can_be_entered


@pytest.mark.parametrize("packed", [False, True])
def test_truncation_at_any_byte_is_detected(packed: bool) -> None:
    data = tar_bytes([("a.txt", b"x" * 700), ("b" * 150 + ".txt", b"hello")], format=tarfile.PAX_FORMAT)
    whole = data.rstrip(b"\0")
    end = -(-len(whole) // 512) * 512
    for stop in [0, 1, 511, 512, 513, 1211, 1212, 1535, 1536, 1600, 2048, 2560, end - 1, end, end + 1, end + 511]:
        with pytest.raises(CorruptSource, match=r"a\.tar.*byte.*again"):
            exhaust(members_of(data[:stop], packed=packed))
    exhaust(members_of(data[: end + 512], packed=packed))


def exhaust(members: Members) -> None:
    while members.advance():
        members.read()


def test_rejects_headers_that_declare_more_bytes_than_there_are() -> None:
    info = tarfile.TarInfo("a.txt")
    info.size = 1 << 40
    data = info.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    with pytest.raises(CorruptSource, match=r"a\.tar.*'a.txt' at byte 0.*1099511627776"):
        members_of(data).advance()
    with pytest.raises(CorruptSource, match="max_field_bytes="):
        members_of(data, packed=True, limit=1 << 20).advance()


def test_garbage_between_files_is_detected() -> None:
    data = tar_bytes([("a.txt", b"hello"), ("b.txt", b"world")])
    broken = data[:1024] + b"\x01" + data[1025:]
    members = members_of(broken)
    assert members.advance()
    with pytest.raises(CorruptSource, match=r"a\.tar: what stands at byte 1024 is not the header"):
        members.advance()
    with tarfile.open(fileobj=io.BytesIO(broken)) as archive:
        assert len(archive.getnames()) == 1  # tarfile treats it as the end


@pytest.mark.parametrize("records", [b"99 path=x\n", b"8 path=x\n", b"nonsense path=", b"0 path=x\n", b"11 size=-5\n"])
def test_damaged_pax_records(records: bytes) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(records)
    data = info.tobuf(tarfile.GNU_FORMAT) + records.ljust(512, b"\0") + tar_bytes([("a.txt", b"x")])
    with pytest.raises(CorruptSource, match=r"a\.tar"):
        members_of(data).advance()


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        *(
            ({"name": "././@LongLink", "type": kind, "size": 1 << 30}, tarfile.GNU_FORMAT)
            for kind in (b"L", b"x", b"g")
        ),
        ({"pax_headers": {"GNU.sparse.major": "1"}}, tarfile.PAX_FORMAT),
        ({"type": b"S"}, tarfile.GNU_FORMAT),
    ],
)
def test_rejects_names_of_excessive_length_and_sparse_files(changes: dict[str, Any], form: Literal[0, 1, 2]) -> None:
    info = tarfile.TarInfo("a.txt")
    for name, value in changes.items():
        setattr(info, name, value)
    with pytest.raises(CorruptSource, match=r"a\.tar"):
        members_of(info.tobuf(form) + bytes(4096)).advance()


@given(st.binary(max_size=60), st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 25))))
def test_bytes_can_be_taken_and_skipped(data: bytes, chunk: int, steps: list[tuple[bool, int]]) -> None:
    places = iter(range(0, len(data), chunk))
    stream = ByteReader(lambda: data[place : place + chunk] if (place := next(places, None)) is not None else b"", 100)
    at = 0
    for takes, count in steps:
        expected = data[at : at + count]
        if takes:
            assert stream.take(count) == expected
        else:
            assert stream.skip(count) == len(expected)
        at += len(expected)
        assert stream.offset == 100 + at


@pytest.mark.parametrize("packed", [False, True])
def test_only_zeros_may_follow_the_end_mark(packed: bool) -> None:
    data = tar_bytes([("a.txt", b"hello"), ("b.txt", b"world"), ("c.txt", b"!")])
    exhaust(members_of(data + bytes(700), packed=packed))
    overwritten = data[:1024] + bytes(512) + data[1536:]
    for wrong in (overwritten, data + data, data + b"x", data[:-1] + b"x"):
        with pytest.raises(CorruptSource, match=r"a\.tar: a block of zeros.* at byte \d+, but other bytes follow"):
            exhaust(members_of(wrong, packed=packed))


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
def test_headers_are_parsed_like_tarfile_parses_them(name: str, size: int, form: Literal[0, 1], kind: bytes) -> None:
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


@given(st.integers(0, 511), st.integers(1, 255))
def test_a_changed_byte_is_detected(place: int, change: int) -> None:
    block = bytearray(header(size=5))
    before = Header(bytes(block))
    block[place] = (block[place] + change) % 256
    try:
        after = Header(bytes(block))
    except BadHeader:
        return
    # The checksum field itself can spell the same number in other ways.
    assert 148 <= place < 156
    assert (after.name, after.size, after.kind) == (before.name, before.size, before.kind)


def test_all_spellings_of_checksums() -> None:
    block = header(name="ä" * 20)
    total = sum(block[:148] + b" " * 8 + block[156:])
    signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + b" " * 8 + block[156:])
    for text in (b"%06o\0 " % total, b"%07o\0" % total, b"%6o \0" % total, b"%06o\0 " % signed, b"%08o" % total):
        assert Header(block[:148] + text + block[156:]).name == "ä" * 20
    with pytest.raises(BadHeader, match="checksum"):
        Header(block[:148] + b"%06o\0 " % (total + 1) + block[156:])


def test_all_spellings_of_sizes() -> None:
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
    for text in (b"\xff" * 12, b"-0000000017\0", b"\xff" + b"\0" * 11, b"hello world\0"):
        with pytest.raises(BadHeader, match="size"):
            Header(with_checksum(block[:124] + text + block[136:]))


def test_name_prefixes_and_directories_of_old_archives() -> None:
    name = "/".join(["folder"] * 20) + "/a.txt"
    info = tarfile.TarInfo(name)
    assert Header(info.tobuf(tarfile.USTAR_FORMAT)).name == name
    block = with_checksum(header(name="folder/")[:156] + b"\0" + header()[157:])
    assert not Header(with_checksum(b"folder/".ljust(100, b"\0") + block[100:])).has_content


@pytest.mark.parametrize("files", [[], [("a.txt", b"hello")]])
def test_a_shard_whose_rest_is_zeros_is_damaged(files: list[tuple[str, bytes]]) -> None:
    """A disk that lost its blocks returns zeros, which look like the end of an archive."""
    whole = tar_bytes(files)
    assert read_all(whole + bytes(100_000)) == files
    with pytest.raises(CorruptSource, match="bytes of zeros"):
        read_all(whole + bytes(2 << 20), 1 << 16)
