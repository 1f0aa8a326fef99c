"""Pictures of every kind are recognised, resized and encoded as the guide says."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.errors import PackError
from feedline.tools.write.pictures import Pictures, extension_of


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))


def in_mode(mode: str) -> Any:
    if mode == "I;16":
        return Image.fromarray(np.asarray(PHOTO.convert("L")).astype(np.uint16) << 8)
    return PHOTO.convert("L").convert(mode) if mode in ("I", "F") else PHOTO.convert(mode)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
def test_image_formats_are_recognised(kind: str) -> None:
    assert extension_of(encoded(PHOTO, kind)) == {"JPEG": "jpg"}.get(kind, kind.lower())
    assert opened(Pictures(encode="png").apply(encoded(PHOTO, kind))).format == "PNG"


@pytest.mark.parametrize(
    ("resize", "size", "kind"),
    [(30, (45, 30), "JPEG"), (60, (90, 60), "PNG"), (600, (90, 60), "JPEG"), ((200, 10), (200, 10), "PNG")],
)
def test_resize_gives_the_expected_size(resize: Any, size: tuple[int, int], kind: str) -> None:
    found = opened(Pictures(resize=resize).apply(encoded(PHOTO, kind)))
    assert (found.size, found.format) == (size, kind)


@pytest.mark.parametrize("encode", ["jpg", "keep"])
def test_pictures_that_need_no_change_are_not_encoded_again(encode: str) -> None:
    data = encoded(PHOTO, "JPEG")
    assert Pictures(encode=encode).apply(data) is data


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_every_mode_becomes_jpeg_and_pixels(mode: str) -> None:
    image = in_mode(mode)
    jpeg = opened(Pictures(encode="jpg").apply(image))
    assert (jpeg.format, jpeg.mode) == ("JPEG", "L" if mode == "L" else "RGB")
    for resize in (None, (9, 6)):
        pixels = Pictures(encode="raw", resize=resize).apply(image)
        assert pixels.dtype == np.uint8
        assert pixels.shape == ((60, 90, 3) if resize is None else (6, 9, 3)), "three channels in every mode"


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "GIF"), ("1", "PNG"), ("I;16", "TIFF")]
)
def test_files_of_every_mode_become_rgb(mode: str, kind: str) -> None:
    data = encoded(in_mode(mode), kind)
    pixels = Pictures(encode="raw").apply(data)
    assert pixels.shape == (60, 90, 3)
    assert opened(Pictures(encode="png", resize=30).apply(data)).size == (45, 30)
    off = abs(pixels.astype(int).mean(2) - np.asarray(PHOTO).mean(2)).mean()
    assert off < (120 if mode == "1" else 60), "it is the same picture"


def test_16_bit_values_keep_their_upper_byte() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pixels = Pictures(encode="raw").apply(encoded(Image.fromarray(values), "PNG"))
    assert np.array_equal(pixels, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, 2))


@pytest.mark.parametrize(("mode", "dtype"), [("I", np.int32), ("F", np.float32)])
def test_32_bit_pictures_are_rejected_only_if_they_are_encoded(mode: str, dtype: type) -> None:
    image = in_mode(mode)
    kept = Pictures().apply(image)
    assert kept.dtype == dtype
    assert np.array_equal(kept, np.asarray(image))
    assert Pictures(resize=30).apply(image).shape == (30, 45)
    for picture in (image, encoded(image, "TIFF")):
        with pytest.raises(PackError, match=f"32-bit values .Pillow's mode '{mode}'"):
            Pictures(encode="raw").apply(picture)


def test_a_colour_profile_for_another_mode_is_dropped_and_the_orientation_is_kept() -> None:
    data = encoded(PHOTO.convert("CMYK"), "JPEG", icc_profile=b"a profile of CMYK")
    assert "icc_profile" not in opened(Pictures(resize=30).apply(data)).info
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(PHOTO, "JPEG", icc_profile=b"a profile of RGB", exif=exif)
    resized = opened(Pictures(resize=30).apply(data))
    assert resized.info["icc_profile"] == b"a profile of RGB"
    assert resized.getexif()[0x0112] == 6


def test_rejects_a_damaged_picture() -> None:
    with pytest.raises(PackError, match="cannot be decoded"):
        Pictures(resize=8).apply(encoded(PHOTO, "PNG")[:500])
