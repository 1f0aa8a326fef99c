from __future__ import annotations

import io
import struct

import pytest

from feedline.errors import CorruptSource
from feedline.video.declared import check_declared

pytest.importorskip("av")

from tests.video.files import encoded, options


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", len(body) + 8) + kind + body


def movie(*tables: bytes) -> bytes:
    inside = box(b"stbl", *tables)
    for kind in (b"minf", b"mdia", b"trak", b"moov"):
        inside = box(kind, inside)
    return box(b"ftyp", b"isom") + inside


def length(value: int) -> bytes:
    return (value | 1 << 56).to_bytes(8, "big")


HEADER = b"\x1a\x45\xdf\xa3" + length(5) + b"12345"


def check(data: bytes) -> None:
    check_declared(io.BytesIO(data), "a.mp4")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF\4\0\0\0AVI ",
        b"RIFF\4\0\0\0AVI RIFF\5\0\0\0AVIX1\0idx1",
        b"RIFF\xff\xff\xff\xffAVI written to a pipe",
        movie(),
        movie(box(b"stsz", struct.pack(">III", 0, 0, 12))),
        movie(box(b"stts", struct.pack(">IIII", 0, 1, 5, 5))),
        box(b"free") + struct.pack(">I", 0) + b"mdat rest of the file",
        struct.pack(">I4sQ", 1, b"free", 16) + b"moov",
        struct.pack(">I4sQ", 1, b"free", 3) + b"moov",
        HEADER,
        HEADER[:9],
        HEADER + b"\x18\x53\x80\x67" + length(4) + b"1234",
        HEADER + b"\x18\x53\x80\x67" + b"\xff" + b"live",
        HEADER + b"\x18\x53\x80\x67" + b"\x84" + b"1234",
        HEADER + b"\x18\x53\x80\x67",
        HEADER + b"\x18\x53\x80\x67\0",
    ],
)
def test_valid_headers_pass(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize("container", [(), options(movflags="frag_keyframe+empty_moov"), options(movflags="faststart")])
def test_real_files_pass(container: tuple[tuple[str, str], ...]) -> None:
    check(encoded(muxing=container))


@pytest.mark.parametrize(
    "table",
    [
        box(b"stsz", struct.pack(">III", 0, 1, 1 << 31)),
        box(b"stsz", struct.pack(">III", 0, 1 << 20, 1000)),
        box(b"stz2", struct.pack(">III", 0, 4, 1 << 30)),
        box(b"stts", struct.pack(">II", 0, 1 << 28)),
        box(b"ctts", struct.pack(">IIII", 0, 2, 1, 1)),
        box(b"stco", struct.pack(">II", 0, 1 << 30)),
    ],
)
def test_rejects_tables_larger_than_the_file(table: bytes) -> None:
    with pytest.raises(CorruptSource, match=r"The table '\w+' of a.mp4 declares"):
        check(movie(table))


def test_rejects_fragments_larger_than_the_file() -> None:
    inside = box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 0, 1 << 31))))
    with pytest.raises(CorruptSource, match=r"'trun' of a\.mp4 declares 2147483648 frames"):
        check(box(b"ftyp", b"isom") + inside)


def test_rejects_a_segment_longer_than_the_file() -> None:
    for declared in (length(1000), b"\x85"):
        with pytest.raises(CorruptSource, match=r"a\.mp4 declares .* bytes, but only 4 are there"):
            check(HEADER + b"\x18\x53\x80\x67" + declared + b"1234")


@pytest.mark.parametrize("whole", [b"RIFF\4\0\0\0AVI ", b"RIFF\4\0\0\0AVI RIFF\5\0\0\0AVIX1"])
def test_rejects_a_part_of_an_avi_file_longer_than_the_file(whole: bytes) -> None:
    with pytest.raises(CorruptSource, match=r"a\.mp4 declares"):
        check(whole[:-1])


def test_rejects_too_many_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.video.declared._MOST_BOXES", 100)
    with pytest.raises(CorruptSource, match="at most 100 are accepted"):
        check(box(b"ftyp", b"isom") + box(b"free") * 200)
