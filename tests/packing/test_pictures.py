from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.errors import BadOption, PackError
from feedline.packing.pictures import Pictures, extension_of


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_kinds_are_recognised(kind: str) -> None:
    extension = {"JPEG": "jpg"}.get(kind, kind.lower())
    assert extension_of(encoded(PHOTO, kind)) == extension
    assert opened(Pictures(encode="png").apply(encoded(PHOTO, kind))).format == "PNG"


@pytest.mark.parametrize("data", [b"", b"BM", b"BMW is a car, no picture", b"RIFF....WAVE", b"\xff\xd8"])
def test_what_is_no_picture_stays(data: bytes) -> None:
    assert extension_of(data) == "bin"
    assert Pictures(encode="jpg", resize=8).apply(data) == data


@pytest.mark.parametrize(
    ("resize", "size"), [(30, (45, 30)), (60, (90, 60)), (600, (90, 60)), ((20, 20), (20, 20)), ((200, 10), (200, 10))]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_sizes(resize: Any, size: tuple[int, int], kind: str) -> None:
    found = opened(Pictures(resize=resize).apply(encoded(PHOTO, kind)))
    assert (found.size, found.format) == (size, kind)


def test_nothing_is_done_twice() -> None:
    data = encoded(PHOTO, "JPEG")
    assert Pictures(encode="jpg").apply(data) is data, "what is JPEG already is not encoded again"
    assert Pictures().apply(data) is data


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_every_mode_becomes_jpeg_and_pixels(mode: str) -> None:
    image = PHOTO.convert("L").convert("I").convert(mode) if mode == "I;16" else PHOTO.convert(mode)
    assert opened(Pictures(encode="jpg").apply(image)).format == "JPEG"
    pixels = Pictures(encode="raw", resize=(9, 6)).apply(image)
    assert pixels.dtype == np.uint8
    assert pixels.shape[:2] == (6, 9)


def test_pixels_are_the_decoders() -> None:
    data = encoded(PHOTO, "PNG")
    assert np.array_equal(Pictures(encode="raw").apply(data), np.asarray(PHOTO))
    assert np.array_equal(opened(Pictures(encode="png").apply(np.asarray(PHOTO))), np.asarray(PHOTO))
    grey = np.asarray(PHOTO.convert("L"))
    assert np.array_equal(opened(Pictures(encode="png").apply(grey[..., None])), grey)


def test_the_orientation_stays_with_the_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(PHOTO, "JPEG", exif=exif)
    assert opened(Pictures(resize=30).apply(data)).getexif()[0x0112] == 6


def test_a_damaged_picture() -> None:
    with pytest.raises(PackError, match="cannot be decoded"):
        Pictures(resize=8).apply(encoded(PHOTO, "PNG")[:500])


@pytest.mark.parametrize(
    "options", [{"resize": (1, 2, 3)}, {"resize": 0}, {"resize": "8"}, {"quality": 101}, {"encode": "gif"}]
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        Pictures(**options)
