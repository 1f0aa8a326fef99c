from __future__ import annotations

import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import CorruptSource, MissingExtra
from feedline.video import CenterClip, Compose, Video
from feedline.video.container import check_declared


def test_the_package_is_needed_only_for_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    clip = Compose([CenterClip(4)])
    with pytest.raises(MissingExtra, match=r"feedline\[video\]"):
        clip(Video(b"anything"))


def test_a_cover_image_is_not_mistaken_for_the_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "covered.mp4"
    with av.open(str(path), "w") as file:
        video = file.add_stream("libx264", rate=10, width=64, height=48, pix_fmt="yuv420p")
        cover = file.add_stream("mjpeg", rate=1, width=40, height=40, pix_fmt="yuvj420p")
        cover.disposition = av.stream.Disposition.attached_pic
        for stream, count, shape in ((cover, 1, (40, 40, 3)), (video, 20, (48, 64, 3))):
            for _ in range(count):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros(shape, np.uint8), "rgb24")))
            file.mux(stream.encode())
    path.write_bytes(b"".join(map(_tags_first, _boxes(path.read_bytes()))))
    with av.open(str(path)) as file:
        assert file.streams.video[0].name == "mjpeg"
    assert len(Video(path)) == 20
    assert Video(path).frames([7]).shape == (1, 48, 64, 3)


def _boxes(data: bytes) -> Iterator[bytes]:
    while data:
        length = int.from_bytes(data[:4], "big")
        yield data[:length]
        data = data[length:]


def _tags_first(box: bytes) -> bytes:
    """Return the header of a file with its tags, including the cover, before its streams."""
    if box[4:8] != b"moov":
        return box
    places, inside = {b"mvhd": 0, b"udta": 1}, list(_boxes(box[8:]))
    inside.sort(key=lambda inner: places.get(inner[4:8], 2))
    return box[:8] + b"".join(inside)


# -- declared sizes ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "table",
    [
        box(b"stsz", struct.pack(">III", 0, 1, 1 << 31)),
        box(b"stsz", struct.pack(">III", 0, 1 << 20, 1000)),
        box(b"stz2", struct.pack(">III", 0, 4, 1 << 30)),
        box(b"stts", struct.pack(">II", 0, 1 << 28)),
        box(b"ctts", struct.pack(">IIII", 0, 2, 1, 1)),
        box(b"stco", struct.pack(">II", 0, 1 << 30)),
        None,
    ],
)
def test_rejects_tables_larger_than_the_file(table: bytes | None) -> None:
    fragment = box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 0, 1 << 31))))
    with pytest.raises(CorruptSource, match=r"'\w+' of a.mp4 declares"):
        check(box(b"ftyp", b"isom") + fragment if table is None else movie(table))


@pytest.mark.parametrize(
    "data",
    [
        HEADER + b"\x18\x53\x80\x67" + length(1000) + b"1234",
        HEADER + b"\x18\x53\x80\x67" + b"\x85" + b"1234",
        b"RIFF\4\0\0\0AVI",
        b"RIFF\4\0\0\0AVI RIFF\5\0\0\0AVIX",
    ],
)
def test_rejects_a_part_longer_than_the_file(data: bytes) -> None:
    with pytest.raises(CorruptSource, match=r"a\.mp4 declares"):
        check(data)


def test_rejects_too_many_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.video.container._MOST_BOXES", 100)
    with pytest.raises(CorruptSource, match="at most 100 are accepted"):
        check(box(b"ftyp", b"isom") + box(b"free") * 200)
