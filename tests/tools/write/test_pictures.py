from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.errors import BadOption, PackError
from feedline.tools.write.pictures import Pictures, extension_of

pytestmark = pytest.mark.sample(5)


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
def test_image_formats_are_recognised(kind: str) -> None:
    extension = {"JPEG": "jpg"}.get(kind, kind.lower())
    assert extension_of(encoded(PHOTO, kind)) == extension
    assert opened(Pictures(encode="png").apply(encoded(PHOTO, kind))).format == "PNG"


@pytest.mark.parametrize("data", [b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"])
def test_jpeg_xl_is_recognised(data: bytes) -> None:
    assert extension_of(data) == "jxl"


@pytest.mark.parametrize("data", [b"", b"BM", b"BMW is a car, no picture", b"RIFF....WAVE", b"\xff\xd8"])
def test_data_that_is_not_a_picture_stays_unchanged(data: bytes) -> None:
    assert extension_of(data) == "bin"
    assert Pictures(encode="jpg", resize=8).apply(data) == data


@pytest.mark.parametrize(
    ("resize", "size"), [(30, (45, 30)), (60, (90, 60)), (600, (90, 60)), ((20, 20), (20, 20)), ((200, 10), (200, 10))]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_resize_gives_the_expected_size(resize: Any, size: tuple[int, int], kind: str) -> None:
    found = opened(Pictures(resize=resize).apply(encoded(PHOTO, kind)))
    assert (found.size, found.format) == (size, kind)


def test_pictures_that_need_no_change_are_not_encoded_again() -> None:
    data = encoded(PHOTO, "JPEG")
    assert Pictures(encode="jpg").apply(data) is data, "it is JPEG already"
    assert Pictures().apply(data) is data


MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I;16"]


def in_mode(mode: str) -> Any:
    if mode == "I;16":
        return Image.fromarray(np.asarray(PHOTO.convert("L")).astype(np.uint16) << 8)
    return PHOTO.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_jpeg_and_pixels(mode: str) -> None:
    image = in_mode(mode)
    jpeg = opened(Pictures(encode="jpg").apply(image))
    assert (jpeg.format, jpeg.mode) == ("JPEG", "L" if mode == "L" else "RGB")
    for resize in (None, (9, 6)):
        pixels = Pictures(encode="raw", resize=resize).apply(image)
        assert pixels.dtype == np.uint8
        assert pixels.shape == ((60, 90, 3) if resize is None else (6, 9, 3)), "three channels in every mode"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("P", "GIF"),
     ("1", "PNG"), ("I;16", "PNG"), ("CMYK", "TIFF"), ("I;16", "TIFF")],
)  # fmt: skip
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


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_pictures_are_rejected_if_they_are_encoded(mode: str) -> None:
    for encode in ("raw", "jpg"):
        with pytest.raises(PackError, match=f"32-bit values .Pillow's mode '{mode}'"):
            Pictures(encode=encode).apply(encoded(PHOTO.convert("L").convert(mode), "TIFF"))


@pytest.mark.parametrize(("mode", "dtype"), [("I", np.int32), ("F", np.float32)])
def test_32_bit_pictures_are_kept_if_they_are_not_encoded(mode: str, dtype: type) -> None:
    image = PHOTO.convert("L").convert(mode)
    kept = Pictures().apply(image)
    assert kept.dtype == dtype
    assert np.array_equal(kept, np.asarray(image))
    assert Pictures(resize=30).apply(image).shape == (30, 45)
    with pytest.raises(PackError, match=r"Leave out --encode, or"):
        Pictures(encode="raw").apply(image)


def test_palettes_with_transparency_are_converted_without_a_warning() -> None:
    """Pillow warns about careless conversions, and warnings are errors here."""
    data = encoded(PHOTO.convert("P"), "PNG", transparency=bytes(range(256)))
    assert Pictures(encode="raw").apply(data).shape == (60, 90, 3)
    assert opened(Pictures(encode="jpg").apply(data)).mode == "RGB"
    assert opened(Pictures(resize=30).apply(data)).mode == "RGBA"


@pytest.mark.parametrize(("mode", "shape"), [("L", (60, 90)), ("RGBA", (60, 90, 4)), ("1", (60, 90, 3))])
def test_pillow_images_that_are_kept_keep_their_channels(mode: str, shape: tuple[int, ...]) -> None:
    assert Pictures().apply(PHOTO.convert(mode)).shape == shape


def test_arrays_keep_their_number_of_channels() -> None:
    assert Pictures(encode="raw", resize=(9, 6)).apply(np.zeros((60, 90, 4), np.uint8)).shape == (6, 9, 4)
    assert Pictures(encode="raw", resize=(9, 6)).apply(np.zeros((60, 90), np.uint8)).shape == (6, 9)
    assert Pictures(encode="raw", resize=(9, 6)).apply(np.zeros((60, 90, 1), np.uint8)).shape == (6, 9, 1)


def test_a_colour_profile_for_another_mode_is_dropped() -> None:
    data = encoded(PHOTO.convert("CMYK"), "JPEG", icc_profile=b"a profile of CMYK")
    assert "icc_profile" not in opened(Pictures(resize=30).apply(data)).info
    data = encoded(PHOTO, "JPEG", icc_profile=b"a profile of RGB")
    assert opened(Pictures(resize=30).apply(data)).info["icc_profile"] == b"a profile of RGB"


def test_pixels_equal_those_of_pillow() -> None:
    data = encoded(PHOTO, "PNG")
    assert np.array_equal(Pictures(encode="raw").apply(data), np.asarray(PHOTO))
    assert np.array_equal(opened(Pictures(encode="png").apply(np.asarray(PHOTO))), np.asarray(PHOTO))
    grey = np.asarray(PHOTO.convert("L"))
    assert np.array_equal(opened(Pictures(encode="png").apply(grey[..., None])), grey)


def test_resizing_keeps_the_exif_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(PHOTO, "JPEG", exif=exif)
    assert opened(Pictures(resize=30).apply(data)).getexif()[0x0112] == 6


def test_rejects_a_damaged_picture() -> None:
    with pytest.raises(PackError, match="cannot be decoded"):
        Pictures(resize=8).apply(encoded(PHOTO, "PNG")[:500])


@pytest.mark.parametrize("resize", [(), (256,), (1, 2, 3)])
def test_rejects_sizes_without_a_width_and_a_height(resize: Any) -> None:
    with pytest.raises(BadOption, match=f"has {len(resize)} numbers. Give a width and a height"):
        Pictures(resize=resize)
