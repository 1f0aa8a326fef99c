import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.tar.members import Bytes, Members
from feedline.errors import CorruptSource
from tests.datasets.tar.test_headers import with_checksum
from tests.datasets.tar.writing import tar_bytes

FORMATS = [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT]


def members_of(data: bytes, chunk: int = 1000, *, packed: bool = False, limit: int = 1 << 30) -> Members:
    places = iter(range(0, len(data), chunk))

    def next_chunk() -> bytes:
        start = next(places, None)
        return b"" if start is None else data[start : start + chunk]

    return Members(Bytes(next_chunk), "a.tar", size=None if packed else len(data), limit=limit)


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
def test_files_are_those_that_tarfile_finds(files: list[tuple[str, bytes]], form: int, chunk: int, every: int) -> None:
    try:
        data = tar_bytes(files, format=form)
    except ValueError:
        return  # names that do not fit into this format
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


def test_directories_and_links_have_no_content_whatever_they_say() -> None:
    info = tarfile.TarInfo("folder.txt")
    info.type, info.size = tarfile.SYMTYPE, 5000
    data = info.tobuf(tarfile.GNU_FORMAT) + tar_bytes([("a.txt", b"hello")])
    assert read_all(data) == [("a.txt", b"hello")]


def test_sizes_and_names_in_pax_records_count() -> None:
    info = tarfile.TarInfo("short")
    info.size = 3
    info.pax_headers = {"path": "ä/long.txt", "size": "5", "comment": "nothing"}
    data = info.tobuf(tarfile.PAX_FORMAT) + b"hello".ljust(512, b"\0") + bytes(1024)
    assert read_all(data) == [("ä/long.txt", b"hello")]


def test_records_for_all_files() -> None:
    first = tarfile.TarInfo.create_pax_global_header({"comment": "x", "size": "5"})
    info = tarfile.TarInfo("a.txt")
    info.size = 3
    data = first + info.tobuf(tarfile.GNU_FORMAT) + b"hello".ljust(512, b"\0") + bytes(1024)
    members = members_of(data)
    assert members.advance()
    assert members.read() == b"hello"
    assert not members.can_be_entered


@pytest.mark.parametrize("packed", [False, True])
def test_every_place_where_a_shard_can_be_cut_off_is_noticed(packed: bool) -> None:
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


def test_headers_that_promise_more_than_there_is() -> None:
    info = tarfile.TarInfo("a.txt")
    info.size = 1 << 40
    data = info.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    with pytest.raises(
        CorruptSource, match=r"a\.tar: the file 'a.txt' at byte 0 declares 1099511627776 bytes.*2048 are there"
    ):
        members_of(data).advance()
    with pytest.raises(CorruptSource, match="max_field_bytes="):
        members_of(data, packed=True, limit=1 << 20).advance()


def test_garbage_between_files() -> None:
    data = tar_bytes([("a.txt", b"hello"), ("b.txt", b"world")])
    broken = data[:1024] + b"\x01" + data[1025:]
    members = members_of(broken)
    assert members.advance()
    with pytest.raises(CorruptSource, match=r"a\.tar: what stands at byte 1024 is not the header"):
        members.advance()
    with tarfile.open(fileobj=io.BytesIO(broken)) as archive:
        assert len(archive.getnames()) == 1  # tarfile takes it for the end


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_names_of_endless_length_are_refused(kind: bytes) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 1 << 30
    with pytest.raises(CorruptSource, match="1073741824 bytes are announced"):
        members_of(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)).advance()


@pytest.mark.parametrize("records", [b"99 path=x\n", b"8 path=x\n", b"nonsense path=", b"0 path=x\n", b"11 size=-5\n"])
def test_pax_records_that_are_damaged(records: bytes) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(records)
    data = info.tobuf(tarfile.GNU_FORMAT) + records.ljust(512, b"\0") + tar_bytes([("a.txt", b"x")])
    with pytest.raises(CorruptSource, match=r"a\.tar"):
        members_of(data).advance()


def test_sparse_files_are_refused_in_either_form() -> None:
    info = tarfile.TarInfo("a.txt")
    info.pax_headers = {"GNU.sparse.major": "1"}
    with pytest.raises(CorruptSource, match="sparse"):
        members_of(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)).advance()
    block = tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(CorruptSource, match="sparse"):
        members_of(with_checksum(block[:156] + b"S" + block[157:])).advance()


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 700))
def test_no_bytes_lead_to_anything_but_files_or_an_error(data: bytes, chunk: int) -> None:
    members = members_of(data, chunk)
    try:
        while members.advance():
            assert len(members.read()) == members.size
    except CorruptSource:
        pass


@given(st.binary(max_size=60), st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 25))))
def test_bytes_are_taken_and_skipped(data: bytes, chunk: int, steps: list[tuple[bool, int]]) -> None:
    places = iter(range(0, len(data), chunk))
    stream = Bytes(lambda: data[place : place + chunk] if (place := next(places, None)) is not None else b"", 100)
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
