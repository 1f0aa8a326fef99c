"""Headers of complete files agree with Pillow; all other files are rejected before memory is allocated for them."""

from __future__ import annotations

import dataclasses
import io
import struct
from typing import Any

import numpy as np
import pytest

from feedline.errors import BadOption, CorruptSource
from feedline.images.header import Header, read_header
from feedline.system.sizes import SampleSize
from tests.images.files import HEIGHT, WIDTH, files, gradient, stored, turned

Image = pytest.importorskip("PIL.Image")

PLAIN = [name for name in files() if name.startswith(("jpeg", "png", "webp"))]
PLAIN = [name for name in PLAIN if not name.endswith(("cmyk", "animation", "2000"))]
GPU = [name for name in PLAIN if name.startswith("jpeg") and name not in ("jpeg-rgb", "jpeg-progressive")]


@pytest.mark.parametrize("name", files())
def test_format_and_size_agree_with_pillow(name: str) -> None:
    image = Image.open(io.BytesIO(files()[name]))
    header = read_header(files()[name])
    found = dataclasses.replace(header, height_at=0)
    assert found == Header(image.format, WIDTH, HEIGHT, 1, plain=name in PLAIN, gpu=name in GPU)
    assert found.stored_size == image.size
    in_part = name.startswith("jpeg") and name in PLAIN and not name.endswith(("progressive", "restarts", "scans"))
    assert bool(header.height_at) == in_part


def exif(order: str, *entries: tuple[int, int, int], count: int | None = None) -> bytes:
    """Return EXIF data with entries of tag, type and value."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    packed = b"".join(struct.pack(f"{order}HHIHxx", tag, kind, 1, value) for tag, kind, value in entries)
    return head + struct.pack(f"{order}H", len(entries) if count is None else count) + packed


def jpeg_with(*segments: tuple[int, bytes]) -> bytes:
    """Return a JPEG with segments inserted at its start."""
    packed = b"".join(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for marker, content in segments)
    return files()["jpeg"][:2] + packed + files()["jpeg"][2:]


@pytest.mark.parametrize("order", "<>")
def test_orientation_is_found_among_other_entries(order: str) -> None:
    data = exif(order, (0x010F, 2, 1), (0x0112, 3, 6), (0x0132, 2, 1))
    before = [(0xFE, b"a comment"), (0xE1, b"http://ns.adobe.com/xap")]
    assert read_header(jpeg_with(*before, (0xE1, b"Exif\0\0" + data))).orientation == 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"II*\0",
        b"XX*\0" + exif("<", (0x0112, 3, 6))[4:],
        exif("<", (0x0112, 3, 0)),
        exif("<", (0x0112, 3, 9)),
        exif("<", (0x0112, 4, 6)),
        exif("<", (0x0100, 3, 6), count=60_000),
        b"II*\0" + struct.pack("<I", 0xFFFFFFFF),
    ],
)
def test_an_unreadable_orientation_counts_as_1(data: bytes) -> None:
    assert read_header(jpeg_with((0xE1, b"Exif\0\0" + data))).orientation == 1


def test_webp_may_have_the_prefix_of_jpeg_before_its_exif_data() -> None:
    data = turned("WEBP", 6, lossless=True)
    place = data.index(b"EXIF")
    (length,) = struct.unpack_from("<I", data, place + 4)
    content = b"Exif\0\0" + data[place + 8 : place + 8 + length]
    changed = data[: place + 4] + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
    changed = b"RIFF" + struct.pack("<I", len(changed) - 8) + changed[8:]
    assert read_header(changed).orientation == 6


def test_bytes_between_segments_are_skipped() -> None:
    data = files()["jpeg"]
    for filling in (b"\xff" * 5, b"abc", b"\xff\x00\xff\x01", b"\xff\xd0"):
        found = read_header(data[:2] + filling + data[2:])
        assert dataclasses.replace(found, height_at=found.height_at - len(filling)) == read_header(data)


@pytest.mark.parametrize(
    ("colors", "gpu"), [(b"\x01\x02\x03", True), (b"RGB", False), (b"\x00\x01\x02", True)], ids=["123", "RGB", "012"]
)
def test_rgb_is_recognised_by_the_names_of_components(colors: bytes, gpu: bool) -> None:
    data = bytearray(files()["jpeg"])
    place = data.index(b"\xff\xc0") + 10
    data[place : place + 9 : 3] = colors
    assert read_header(bytes(data)).gpu == gpu


@pytest.mark.parametrize(
    ("place", "value", "plain"),
    [(1, 0xC1, True), (1, 0xC9, False), (1, 0xC3, False), (4, 12, False), (11, 0x14, False), (14, 0x21, False)],
    ids=["extended", "arithmetic", "lossless", "12 bits", "4:1:0", "odd"],
)
def test_unusual_jpegs_are_not_sent_to_the_gpu(place: int, value: int, plain: bool) -> None:
    for name, change, at, is_plain in (("jpeg", value, place, plain), ("jpeg-grey", 0x22, 11, True)):
        data = bytearray(files()[name])
        data[data.index(b"\xff\xc0") + at] = change
        header = read_header(bytes(data))
        assert (header.plain, header.gpu) == (is_plain, False)


@pytest.mark.parametrize("name", files())
def test_a_truncated_file_has_the_same_header_or_none(name: str) -> None:
    data = files()[name]
    whole = read_header(data)
    for end in range(0, len(data), 1 + len(data) // 100):
        try:
            assert read_header(data[:end]) == whole
        except CorruptSource:
            continue
        assert not whole.gpu, f"cut off after {end} bytes, and would be sent to the GPU"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        *((data, "damaged") for data in (b"\xff\xd8", b"\xff\xd8" + b"\xff" * 100_000, b"\xff\xd8\xff\xd9")),
        (b"RIFF\0\0\0\0WEBPXXXX", "damaged"),
        (b"no image", r"image file\. "),  # without the address of Pillow's file in memory
        (b"\xff\xd8\xff\xda\0\x08\x01", "no frame header"),
    ],
)
def test_rejects_files_that_are_not_images(data: bytes, message: str) -> None:
    with pytest.raises(CorruptSource, match=message):
        read_header(data)


def test_a_thumbnail_does_not_hide_a_missing_end() -> None:
    whole = jpeg_with((0xE1, b"Exif\0\0" + exif("<") + stored(gradient()[:8, :8], "JPEG")))
    assert read_header(whole).gpu
    with pytest.raises(CorruptSource, match="no end marker"):
        read_header(whole[:-2])
    assert read_header(whole + b"what a camera appends") == read_header(whole)


def with_size(name: str, place: int, width: int, height: int) -> bytes:
    kind, sides = (">HH", (height, width)) if name == "jpeg" else (">II", (width, height))
    data = bytearray(files()[name])
    struct.pack_into(kind, data, place, *sides)
    return bytes(data)


@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_rejects_more_pixels_than_the_file_can_contain(name: str) -> None:
    place = files()["jpeg"].index(b"\xff\xc0") + 5 if name == "jpeg" else 16
    with pytest.raises(CorruptSource, match=r"declares (81|243)000000 "):
        read_header(with_size(name, place, 9000, 9000))
    with pytest.raises(CorruptSource, match="0 x 10"):
        read_header(with_size(name, place, 0, 10))


SMALLEST = {"quality": 1, "optimize": True}


@pytest.mark.parametrize(
    ("format_", "options"),
    [("PNG", {"compress_level": 9}), ("JPEG", SMALLEST), ("JPEG", {**SMALLEST, "progressive": True})],
)
def test_small_files_of_large_images_in_one_colour_are_accepted(format_: str, options: dict[str, Any]) -> None:
    assert read_header(stored(np.zeros((1000, 3000, 3), np.uint8), format_, **options)).width == 3000


def test_limits_apply_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jpeg", "png", "webp", "tiff"):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT - 1)
        with pytest.raises(CorruptSource, match=r"raise PIL\.Image\.MAX_IMAGE_PIXELS"):
            read_header(files()[name])
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT)
        total = SampleSize(50_000)
        read_header(files()[name], total)
        with pytest.raises(CorruptSource, match="with the fields before it"):
            read_header(files()[name], total)
        monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1000")
        with pytest.raises(CorruptSource, match="raise FEEDLINE_MAX_SAMPLE_BYTES"):
            read_header(files()[name])
        monkeypatch.delenv("FEEDLINE_MAX_SAMPLE_BYTES")


def test_rejects_a_path() -> None:
    with pytest.raises(BadOption, match=r"a str was given\. Read the file"):
        read_header("a.jpg")  # type: ignore[arg-type]
