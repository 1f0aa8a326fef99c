"""Image files with too many parts are rejected before a decoder sees them, and decoders print nothing."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from feedline.errors import CorruptSource
from feedline.images import decoding, pillow
from feedline.images.decoding import decode_image
from feedline.images.parts import MOST_SCANS, MOST_SEGMENTS, check_parts, png_chunks
from tests.images.decoders import INSTALLED, best_installed
from tests.images.files import files, gradient, stored

TEXT = b"tEXt"


def chunk(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_with(*chunks: bytes) -> bytes:
    """Return a PNG with chunks after its header."""
    data = files()["png"]
    return data[:33] + b"".join(chunks) + data[33:]


COMMENT = b"\xff\xfe\0\x04"
"""The start of a JPEG comment of two bytes."""


def jpeg_of_scans(count: int, name: str = "jpeg-progressive", *, between: bytes = b"") -> bytes:
    """Return a JPEG whose last scan is repeated, with some bytes before the first repetition."""
    data = files()[name]
    place = data.rindex(b"\xff\xda")
    return data[:place] + between + data[place:-2] * count + data[-2:]


def scan_bytes(count: int) -> bytes:
    """Return a JPEG comment full of start-of-scan markers."""
    return b"\xff\xfe" + struct.pack(">H", 2 + 2 * count) + b"\xff\xda" * count


MANY: dict[str, tuple[Callable[[], bytes], str]] = {
    "PNG of texts": (lambda: png_with(chunk(TEXT) * 20_000), r"more than 1,\d\d\d chunks"),
    "PNG of empty pixel chunks": (lambda: png_with(chunk(b"IDAT") * 20_000), r"more than 1,\d\d\d chunks"),
    "progressive JPEG of scans": (lambda: jpeg_of_scans(13_000), "more than 100 scans"),
    "sequential JPEG of scans": (lambda: jpeg_of_scans(MOST_SCANS, "jpeg-scans"), "more than 100 scans"),
    "JPEG of scans behind an end marker in a comment": (
        lambda: jpeg_of_scans(MOST_SCANS, between=COMMENT + b"\xff\xd9"),
        "more than 100 scans",
    ),
    "JPEG of comments between scans": (
        lambda: jpeg_of_scans(1, between=b"\xff\xfe\0\x02" * 10_000 + scan_bytes(200)),
        "10,000 segments",
    ),
    "JPEG of comments": (lambda: b"\xff\xd8" + b"\xff\xfe\0\x02" * 10_000 + files()["jpeg"][2:], "10,000 segments"),
}


@pytest.mark.parametrize("name", MANY)
def test_rejects_files_with_many_parts_before_decoding_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for decoder in ("_simplejpeg", "_by_simplejpeg", "_opencv", "_pillow", "open_picture"):
        monkeypatch.setattr(decoding, decoder, pytest.fail)
    monkeypatch.setattr(pillow, "open_picture", pytest.fail)
    decoding._decoder.cache_clear()
    make, why = MANY[name]
    data = make()
    for read in (decode_image, pillow.checked_picture, functools.partial(decode_image, rows=10)):
        with pytest.raises(CorruptSource, match=why):
            read(data)


def test_files_that_programs_write_are_accepted() -> None:
    for data in files().values():
        check_parts(data)
    check_parts(jpeg_of_scans(MOST_SCANS // 2))
    check_parts(png_with(chunk(TEXT, b"Comment\0x") * 500))
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    check_parts(b"".join(_in_small_chunks(stored(pixels, "PNG"))))
    check_parts(b"\xff\xd8" + b"\xff\xfe\0\x02" * (MOST_SEGMENTS - 20) + files()["jpeg"][2:])
    check_parts(b"no image at all")


def test_only_scans_of_the_image_itself_are_counted() -> None:
    """A motion photo has a video after its end, and metadata may contain another image."""
    many = 2 * MOST_SCANS
    data = files()["jpeg-progressive"]
    for changed in (
        data + b"\xff\xda" * many,
        data[:2] + b"\xff\xe2" + scan_bytes(many)[2:] + data[2:],
        jpeg_of_scans(1, between=scan_bytes(many)),
    ):
        check_parts(changed)
        assert np.array_equal(decode_image(changed), decode_image(data))


def _in_small_chunks(data: bytes) -> list[bytes]:
    """Rewrite the pixels of a PNG in chunks of 2 KiB, which is unusually small."""
    packed = b"".join(
        data[place + 8 : place + 8 + length] for name, place, length in png_chunks(data) if name == b"IDAT"
    )
    pieces = [chunk(b"IDAT", packed[start : start + 2048]) for start in range(0, len(packed), 2048)]
    return [data[:33], *pieces, chunk(b"IEND")]


@pytest.mark.parametrize("package", [name for name in INSTALLED if name != "simplejpeg"])
@pytest.mark.parametrize("odd", [chunk(TEXT), chunk(b"iCCP", b"x\0\0broken"), chunk(b"gAMA", bytes(4)), chunk(b"prVt")])
def test_chunks_that_libpng_complains_about_print_nothing(
    package: str, odd: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with best_installed(package):
        found = decode_image(png_with(odd * 5))
    assert np.array_equal(found, gradient())
    assert capfd.readouterr() == ("", "")
