"""JPEG XL: the size is read before a decoder sees the file, and the pixels equal those that were stored."""

from __future__ import annotations

import importlib
import importlib.util
import io
import struct
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from feedline.errors import CorruptSource, MissingExtra
from feedline.images import decode_image
from feedline.images.header import Header, read_header
from feedline.images.jxl import CONTAINER, is_jxl, jxl_size
from feedline.images.pillow import picture_decoder
from tests.images.files import files, turned

Image = pytest.importorskip("PIL.Image")

BARE = bytes.fromhex("ff0a18401009080401005c004b188b15c24943593e80130100008e0600001802000000")
"""An image of 6 x 4 pixels in one colour."""
COLOUR = [10, 200, 30]


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


FTYP = box(b"ftyp", b"jxl \0\0\0\0jxl ")
BOXED = CONTAINER + FTYP + box(b"jxlc", BARE)
IN_PARTS = (
    CONTAINER
    + FTYP
    + b"".join(
        box(b"jxlp", struct.pack(">I", number | last) + part)
        for number, (part, last) in enumerate([(BARE[:3], 0), (BARE[3:7], 0), (BARE[7:], 1 << 31)])
    )
)
LONG = CONTAINER + FTYP + struct.pack(">I4sQ", 1, b"jxlc", 16 + len(BARE)) + BARE
TO_THE_END = CONTAINER + FTYP + box(b"Exif", bytes(20)) + struct.pack(">I4s", 0, b"jxlc") + BARE
FORMS = [BARE, BOXED, IN_PARTS, LONG, TO_THE_END]

needs_decoder = pytest.mark.skipif(importlib.util.find_spec("imagecodecs") is None, reason="imagecodecs is missing")


def encoded(pixels: Any, **options: Any) -> bytes:
    imagecodecs = importlib.import_module("imagecodecs")
    return bytes(imagecodecs.jpegxl_encode(pixels, lossless=True, **options))


def bits_of(*fields: tuple[int, int]) -> bytes:
    """Return the start of a file with these numbers, each with its number of bits."""
    value = place = 0
    for number, count in fields:
        value |= number << place
        place += count
    return b"\xff\x0a" + value.to_bytes(40, "little")


@pytest.mark.parametrize("data", FORMS)
def test_the_size_is_read_from_every_form_of_file(data: bytes) -> None:
    assert is_jxl(data)
    assert read_header(data) == Header("JXL", 6, 4)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ([(1, 1), (3, 5), (1, 3), (1, 1)], (32, 32)),  # a multiple of 8, and square
        ([(1, 1), (3, 5), (0, 3), (1, 5), (1, 1)], (16, 32)),
        ([(0, 1), (0, 2), (99, 9), (2, 3), (1, 1)], (120, 100)),
        ([(0, 1), (1, 2), (899, 13), (5, 3), (1, 1)], (1600, 900)),
        ([(0, 1), (2, 2), (200_000, 18), (0, 3), (3, 2), (1 << 29, 30), (1, 1)], ((1 << 29) + 1, 200_001)),
        ([(0, 1), (0, 2), (99, 9), (7, 3), (0, 1), (1, 1), (5, 3)], (100, 200)),  # on its side
        ([(0, 1), (0, 2), (99, 9), (7, 3), (0, 1), (1, 1), (3, 3)], (200, 100)),  # upside down
    ],
)
def test_sizes(fields: list[tuple[int, int]], size: tuple[int, int]) -> None:
    assert jxl_size(bits_of(*fields)) == size


def test_rejects_an_image_that_is_too_large_before_decoding_it(tmp_path: Path) -> None:
    data = bits_of((0, 1), (3, 2), ((1 << 30) - 1, 30), (1, 3), (1, 1))
    with mock.patch.dict(sys.modules, imagecodecs=mock.Mock(jpegxl_decode=pytest.fail)):
        for read in (read_header, decode_image, picture_decoder("rgb8")):
            with pytest.raises(CorruptSource, match=r"1073741824 x 1073741824 pixels.*MAX_IMAGE_PIXELS"):
                read(data)


@pytest.mark.parametrize(
    "data", [*(whole[: whole.index(BARE[:3]) + 3] for whole in FORMS), CONTAINER, CONTAINER + FTYP]
)
def test_rejects_files_that_end_inside_their_header(data: bytes) -> None:
    with pytest.raises(CorruptSource, match="ends inside its header"):
        read_header(data)


def test_the_search_for_an_image_among_many_boxes_ends() -> None:
    with pytest.raises(CorruptSource, match="ends inside its header"):
        jxl_size(CONTAINER + box(b"free", b"") * 100_000 + box(b"jxlc", BARE))
    with pytest.raises(CorruptSource, match="ends inside its header"):
        jxl_size(CONTAINER + struct.pack(">I4s", 3, b"free") * 10)


def test_the_error_names_the_extra() -> None:
    with mock.patch.dict(sys.modules, imagecodecs=None):
        for read in (decode_image, picture_decoder("rgb8")):
            with pytest.raises(MissingExtra, match=r"feedline\[jxl\]"):
                read(BARE)


@needs_decoder
@pytest.mark.parametrize("data", FORMS)
def test_pixels(data: bytes) -> None:
    assert decode_image(data).shape == (4, 6, 3)
    assert (decode_image(data) == COLOUR).all()
    assert np.all(np.asarray(picture_decoder("rgb8")(data)) == COLOUR)
    assert decode_image(data, mode="L").shape == (4, 6, 1)


@needs_decoder
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [4, 8, 10, 16])
def test_any_number_of_bits_and_channels(channels: int, depth: int) -> None:
    dtype = np.uint8 if depth <= 8 else np.uint16
    ramp: Any = np.linspace(0, (1 << depth) - 1, 12 * 16 * channels).astype(dtype).reshape(12, 16, channels)
    data = encoded(ramp[..., 0] if channels == 1 else ramp, bitspersample=depth)
    expected = (ramp / ((1 << depth) - 1) * 255)[..., [0, 0, 0] if channels < 3 else [0, 1, 2]]
    assert np.abs(decode_image(data) - expected).max() <= 1
    if channels == 1:
        assert np.abs(decode_image(data, mode="I;16") / 257 - expected[..., :1]).max() <= 1


@needs_decoder
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright(orientation: int) -> None:
    imagecodecs = importlib.import_module("imagecodecs")
    data = turned("JPEG", orientation)
    stored = bytes(imagecodecs.jpegxl_encode_jpeg(data))
    expected = decode_image(data)
    assert (read_header(stored).height, read_header(stored).width) == expected.shape[:2]
    assert np.abs(decode_image(stored).astype(int) - expected).max() <= 4


@needs_decoder
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_files_are_detected(kept: float) -> None:
    data = encoded(np.asarray(Image.open(io.BytesIO(files()["png"]))))
    with pytest.raises(CorruptSource, match="JPEG XL"):
        decode_image(data[: int(len(data) * kept)])
