"""Every decoder gives the pixels of Pillow, upright, for complete files, and an error for all others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.errors import BadOption, CorruptSource
from feedline.images import decoding
from feedline.images.decoding import decode_image
from feedline.images.header import read_header
from feedline.images.pillow import eight_bits
from tests.images.decoders import INSTALLED, best_installed
from tests.images.files import HEIGHT, WIDTH, files, gradient, stored, turned

Image = pytest.importorskip("PIL.Image")

JPEGS = [name for name in files() if name.startswith("jpeg") and name != "jpeg2000"]
PAIRS = [
    (package, name)
    for name, data in files().items()
    for package in INSTALLED
    if package == "PIL" or (read_header(data).plain and (name in JPEGS or package != "simplejpeg"))
]
"""Pairs of decoders and files, where the decoder makes a difference."""
each_pair = pytest.mark.parametrize(("decoder", "name"), PAIRS, indirect=["decoder"])


@pytest.fixture(params=INSTALLED)
def decoder(request: pytest.FixtureRequest) -> Iterator[str]:
    with best_installed(request.param):
        yield request.param


def by_pillow(data: bytes, mode: str = "RGB") -> NDArray[np.uint8]:
    image = Image.open(io.BytesIO(data))
    image.draft(mode, image.size)
    image.load()
    image.info.pop("transparency", None)
    pixels = np.asarray(eight_bits(image).convert(mode))
    return pixels if mode == "RGB" else pixels[..., None]


# Any: of either width.
def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(int) - other).max())


@each_pair
def test_all_decoders_give_the_pixels_of_pillow(decoder: str, name: str) -> None:
    pixels = decode_image(files()[name])
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert distance(pixels, by_pillow(files()[name])) <= (3 if name.startswith(("jpeg", "webp")) else 0)


@each_pair
def test_grey_equals_that_of_pillow(decoder: str, name: str) -> None:
    pixels = decode_image(files()[name], mode="L")
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert distance(pixels, by_pillow(files()[name], "L")) <= (3 if name.startswith(("jpeg", "webp")) else 1)
    assert np.array_equal(decode_image(files()[name], mode="L", rows=20)[:20], pixels[:20])
    wide = decode_image(files()[name], mode="I;16")
    assert wide.dtype == np.uint16
    assert wide.flags.c_contiguous
    if name != "png-16-bits":  # files of 8 bits use the whole range
        assert np.array_equal(wide, pixels.astype(np.uint16) * 257)
        assert np.array_equal(decode_image(files()[name], mode="I;16", rows=20)[:20], wide[:20])


def deep() -> NDArray[np.uint16]:
    values = np.random.default_rng(0).integers(0, 65_536, (HEIGHT, WIDTH)).astype(np.uint16)
    values[0, :2] = 0, 65_535
    return values


@pytest.mark.parametrize(
    ("format_", "options"),
    [("PNG", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_deflate"}), ("PPM", {}), ("JPEG2000", {})],
)
def test_all_16_bits_are_kept(decoder: str, format_: str, options: dict[str, Any]) -> None:
    data = stored(deep(), format_, **options)
    assert np.array_equal(decode_image(data, mode="I;16")[..., 0], deep())
    assert np.array_equal(decode_image(data, mode="L")[..., 0], deep() >> 8)
    assert np.array_equal(decode_image(data)[..., 1], deep() >> 8)


def test_rejects_values_beyond_16_bits(decoder: str) -> None:
    for values in (
        deep().astype(np.int32) - 1,
        deep().astype(np.int32) * 2,
        deep().astype(np.float32) / 7,
        np.full((4, 4), np.nan, "f4"),
    ):
        with pytest.raises(CorruptSource, match=r'Values from .* do not fit in mode="I;16"'):
            decode_image(stored(values, "TIFF"), mode="I;16")
    assert np.array_equal(decode_image(stored(deep().astype(np.int32), "TIFF"), mode="I;16")[..., 0], deep())


@pytest.mark.parametrize(
    ("format_", "orientation"),
    [*(("JPEG", number) for number in range(1, 9)), ("PNG", 6), ("WEBP", 3), ("TIFF", 8), ("AVIF", 5)],
)
def test_images_are_upright(decoder: str, format_: str, orientation: int) -> None:
    from PIL import ImageOps

    data = turned(format_, orientation)
    pixels = decode_image(data)
    assert distance(pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))) <= 3
    assert pixels.flags.c_contiguous
    header = read_header(data)
    assert pixels.shape == (header.height, header.width, 3)
    assert header.gpu == (format_ == "JPEG" and orientation == 1)
    for mode, scale in (("L", 1), ("I;16", 257)):
        grey = decode_image(data, mode=mode)
        assert np.abs(grey[..., 0] / scale - pixels @ (0.299, 0.587, 0.114)).max() < 6
        assert grey.flags.c_contiguous


@pytest.mark.parametrize(
    ("name", "factor"), [*((name, 4) for name in JPEGS), *(("jpeg", factor) for factor in (1, 2, 8))]
)
def test_jpegs_can_be_decoded_smaller(decoder: str, name: str, factor: int) -> None:
    data = files()[name]
    pixels = decode_image(data, factor=factor)
    assert pixels.shape == (-(-HEIGHT // factor), -(-WIDTH // factor), 3)
    image = Image.open(io.BytesIO(data))
    image.draft(None, (WIDTH // factor, HEIGHT // factor))
    assert distance(pixels, np.asarray(image.convert("RGB"))) <= 3
    sideways = decode_image(turned("JPEG", 6), factor=factor)
    assert sideways.shape == (-(-WIDTH // factor), -(-HEIGHT // factor), 3)


@each_pair
def test_upper_rows_equal_those_of_the_whole_image(decoder: str, name: str) -> None:
    for factor in (1, 2, 4, 8) if name in JPEGS else (1,):
        whole = decode_image(files()[name], factor=factor)
        for rows in (1, 33, 58):
            upper = decode_image(files()[name], factor=factor, rows=rows)
            needed = -(-rows // factor) if name in JPEGS else rows
            assert len(upper) >= needed
            assert np.array_equal(upper[:needed], whole[:needed])


def test_no_more_rows_than_needed_are_decoded(decoder: str) -> None:
    whole = decoder == "cv2"
    assert len(decode_image(files()["jpeg"], rows=33)) == (HEIGHT if whole else 34)
    assert len(decode_image(files()["jpeg"], rows=33, factor=2)) == (38 if whole else 18)
    assert len(decode_image(files()["jpeg"], rows=70)) == HEIGHT  # skipping so few rows saves nothing
    assert decode_image(turned("JPEG", 6), rows=33).shape == (WIDTH, HEIGHT, 3)


@pytest.mark.skipif("simplejpeg" not in INSTALLED, reason="the other decoders do not report it")
def test_damage_is_detected_in_needed_rows() -> None:
    data = files()["jpeg"]
    data = data[:-100] + b"\xff\x00" * 20 + data[-60:]
    assert np.array_equal(decode_image(data, rows=32)[:32], decode_image(files()["jpeg"])[:32])
    with pytest.raises(CorruptSource, match="cannot be decoded"):
        decode_image(data, rows=HEIGHT)


def test_sampling_factors_of_grey_jpegs_do_not_matter(decoder: str) -> None:
    data = bytearray(files()["jpeg-grey"])
    data[data.index(b"\xff\xc0") + 11] = 0x22
    assert np.array_equal(decode_image(data), decode_image(files()["jpeg-grey"]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 100), (100, 3), (7, 9), (15, 16), (17, 31)])
def test_small_images_never_become_smaller_than_allowed(decoder: str, shape: tuple[int, int]) -> None:
    data = stored(np.full((*shape, 3), 77, np.uint8), "JPEG")
    for factor in (2, 4, 8):
        height, width, _ = decode_image(data, factor=factor).shape
        assert shape[0] >= height >= shape[0] / factor
        assert shape[1] >= width >= shape[1] / factor


@each_pair
def test_a_truncated_file_never_gives_grey_areas(decoder: str, name: str) -> None:
    data = files()[name]
    whole = decode_image(data)
    ends = {*range(0, len(data), max(1, len(data) // 20)), *range(max(0, len(data) - 10), len(data))}
    for end in sorted(ends):
        try:
            pixels = decode_image(data[:end])
        except CorruptSource:
            continue
        assert name not in JPEGS, f"taken without its last {len(data) - end} bytes"
        assert np.array_equal(pixels, whole), f"cut off after {end} of {len(data)} bytes"


@pytest.mark.parametrize(
    ("old", "new"), [(b"\xff\xd9", bytes(9) + b"\xff\xd9"), (b"JFIF\0\x01", b"JFIF\0\x07")], ids=["bytes", "version"]
)
def test_files_that_libjpeg_only_warns_about_are_decoded(decoder: str, old: bytes, new: bytes) -> None:
    data = files()["jpeg"].replace(old, new)
    assert data != files()["jpeg"]
    assert np.array_equal(decode_image(data), decode_image(files()["jpeg"]))
    assert decode_image(data, factor=2).shape == (38, 50, 3)


@pytest.mark.parametrize("name", ["jpeg", "png", "webp"])
def test_rejects_pixels_of_another_size_than_declared(decoder: str, name: str) -> None:
    other = read_header(stored(gradient()[:40, :40], {"jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}[name]))
    with pytest.raises(CorruptSource, match=r"declares 40 x 40 pixels|too small|cannot be decoded"):
        decode_image(files()[name], header=other)


def test_versions_of_opencv_without_rgb_output(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    monkeypatch.delattr(cv2, "IMREAD_COLOR_RGB")
    with best_installed("cv2"):
        for name in ("jpeg", "png", "webp"):
            assert distance(decode_image(files()[name]), by_pillow(files()[name])) <= 3
        assert decode_image(files()["jpeg"], factor=4).shape == (19, 25, 3)


@pytest.mark.parametrize(
    "options",
    [{"mode": "RGBA"}, {"factor": 3}, {"rows": -5}, {"rows": 0}, {"rows": 1.5}, {"rows": True}, {"rows": "7"}],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        decode_image(files()["jpeg"], **options)


def test_the_fastest_installed_decoder_is_used(decoder: str) -> None:
    jpeg = {"simplejpeg": decoding._simplejpeg, "cv2": decoding._opencv, "PIL": decoding._pillow}[decoder]
    assert decoding._decoder("JPEG") is jpeg
    if "cv2" in INSTALLED:
        assert decoding._decoder("PNG") is (decoding._pillow if decoder == "PIL" else decoding._opencv)
