"""Decoding of image files with simplejpeg, OpenCV or Pillow: the fastest one installed, without the GIL.

All of them return the same upright image, 8-bit RGB unless `mode=` says otherwise, or raise `CorruptSource`. Truncated
files are always detected. Changed bytes are detected in PNG, which has checksums; in JPEG only by simplejpeg, and only
if they are no longer a valid code; in WebP, AVIF and JPEG XL rarely.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource, FeedlineError, MissingExtra
from feedline.images.header import Header, file_bytes, read_header
from feedline.images.medium import FileBytes
from feedline.images.parts import essential_png
from feedline.images.pillow import converted, open_jxl, open_picture
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.options import checked_choice, checked_count
from feedline.system.sizes import SampleSize

Pixels = NDArray[Any]
"""With the axes height, width and channel. Any: np.uint16 with the mode "I;16", np.uint8 otherwise."""
_Decoder = Callable[[bytes, Header, int, str], Pixels]

CHANNELS = {"RGB": 3, "L": 1, "I;16": 1}
"""The number of channels by mode. The modes have the names of Pillow's."""
_FACTORS = (1, 2, 4, 8)

_BLOCK = 16
"""Maximum number of rows that a JPEG decodes at a time: skipping fewer saves nothing."""
_SPARE = 0.2
"""Extra share of a JPEG's bytes to keep for its upper rows, beyond their share of the rows. It was enough for all of
428 random crops of 200 ImageNet photos; with 0.1, three percent had to be decoded twice.
"""
_END = b"\xff\xd9"
_LEFT_OVER = "extraneous bytes before marker 0xd9"
"""libjpeg's warning after the last row if bytes precede the end marker. It reports damaged codes earlier."""
_HARMLESS = re.compile("unknown JFIF revision|Unknown Adobe color transform|Invalid SOS parameters")
"""libjpeg's warnings before the first row. Published datasets contain such files, and other decoders read them."""


def decode_image(
    data: FileBytes,
    *,
    mode: str = "RGB",
    header: Header | None = None,
    factor: int = 1,
    rows: int | None = None,
    total: SampleSize | None = None,
) -> Pixels:
    """Return an image as an upright array with the axes height, width and channel, in memory of its own.

    Grey becomes RGB, CMYK is converted, 16-bit values keep their upper 8 bits, transparency is dropped, and an
    animation yields its first image: all as Pillow's `convert("RGB")` does, except for 16 bits.

    Args:
        data: the bytes of the file.
        mode: "RGB"; "L" for one channel of 8-bit grey; or "I;16" for one channel of 16-bit grey (uint16), which keeps
            all bits of 16-bit PNG and TIFF files. In this mode, 8-bit values are multiplied by 257, so that white is
            65,535 for all files.
        header: the result of `read_header`, if known.
        factor: 2, 4 or 8 allow an image that is smaller by this factor (each side rounded up), which is faster for
            JPEGs. Other formats are decoded in full.
        rows: how many rows are needed, counted from the top before `factor`. For some JPEGs, decoding stops a few rows
            later to save time, and damage below that is not detected.
        total: the size of the sample that the image is part of.

    Raises:
        CorruptSource: the file is damaged, truncated or not an image; or it is larger than `PIL.Image.MAX_IMAGE_PIXELS`
            or `$FEEDLINE_MAX_SAMPLE_BYTES` allow, or has more parts than `feedline.images.parts` accepts.
        BadOption: `mode`, `factor` or `rows` is not valid.
        MissingExtra: Pillow is not installed.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (500, 375)).save(file, "JPEG")
        >>> decode_image(file.getvalue()).shape, decode_image(file.getvalue(), factor=4).shape
        ((375, 500, 3), (94, 125, 3))
        >>> decode_image(file.getvalue(), mode="L").shape
        (375, 500, 1)
    """
    checked_choice("mode", mode, CHANNELS)
    checked_choice("factor", factor, _FACTORS)
    rows = None if rows is None else checked_count("rows", rows)
    data = file_bytes(data)
    if header is None:
        header = read_header(data, total)
    if rows is not None and (upper := _upper_rows(data, header, rows, factor, mode)) is not None:
        return upper
    return _decoded(data, header, factor, mode)


def _upper_rows(data: bytes, header: Header, rows: int, factor: int, mode: str) -> Pixels | None:
    """Decode a JPEG as if it had only the rows that are needed; None if that is impossible, or it is damaged."""
    height = -(-rows // factor) * factor + factor  # one more: the colours of the last row depend on the next
    decoder = _decoder("JPEG")
    # OpenCV prints a warning about the remaining bytes to standard error.
    if not header.height_at or height + _BLOCK > header.height or decoder is _opencv:
        return None
    place, whole = header.height_at, memoryview(data)
    declared = (whole[:place], height.to_bytes(2, "big"))
    try:
        if decoder is not _simplejpeg:
            upper = dataclasses.replace(header, height=height)
            return _decoded(b"".join((*declared, whole[place + 2 :])), upper, factor, mode)
        # Drop most of the remaining bytes, which libjpeg would scan one by one. If the rows need them after all, there
        # is a warning. Only simplejpeg reports it; other decoders make grey pixels.
        stop = place + int((len(data) - place) * ((height + _BLOCK) / header.height + _SPARE))
        part = b"".join((*declared, whole[place + 2 : stop], _END))
        return _widened(_by_simplejpeg(part, header.width, height, factor, mode), mode)
    except (CorruptSource, ValueError):
        return None


def _decoded(data: bytes, header: Header, factor: int, mode: str) -> Pixels:
    if header.format != "JPEG":
        factor = 1
    try:
        pixels = (_decoder(header.format) if header.plain else _pillow)(data, header, factor, mode)
    except (FeedlineError, MemoryError):
        raise
    # Pillow's plugins raise many types for damaged files: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        raise CorruptSource(
            f"A {header.format} file of {len(data)} bytes cannot be decoded: {words(exc)}. It is damaged or truncated. "
            "Write or copy it again."
        ) from exc
    width, height = header.stored_size
    # Pillow reduces images of a few pixels less than requested.
    if pixels.shape not in [(-(-height // by), -(-width // by), CHANNELS[mode]) for by in _FACTORS if by <= factor]:
        raise CorruptSource(
            f"A {header.format} file of {len(data)} bytes gave an array of shape {pixels.shape}, but its header "
            f"declares {width} x {height} pixels: it is damaged. Write or copy it again."
        )
    return turned(_widened(pixels, mode), header.orientation)


def _widened(pixels: Pixels, mode: str) -> Pixels:
    """Return values of 16 bits, if the mode has them."""
    return pixels * np.uint16(257) if mode == "I;16" and pixels.dtype == np.uint8 else pixels


@functools.cache
def _decoder(format_: str) -> _Decoder:
    """Return the fastest decoder that is installed."""
    known: dict[str, _Decoder] = {"simplejpeg": _simplejpeg, "cv2": _opencv}
    for package in ("simplejpeg", "cv2") if format_ == "JPEG" else ("cv2",):
        try:
            require(package, extra="images", purpose="Decoding images")
        except MissingExtra:
            continue
        return known[package]
    return _pillow


def _simplejpeg(data: bytes, header: Header, factor: int, mode: str) -> Pixels:
    try:
        return _by_simplejpeg(data, *header.stored_size, factor, mode)
    except ValueError as exc:
        if _HARMLESS.search(str(exc)):
            return _pillow(data, header, factor, mode)  # ignores the warning
        raise


def _by_simplejpeg(data: bytes, width: int, height: int, factor: int, mode: str) -> Pixels:
    simplejpeg = require("simplejpeg", extra="images", purpose="Decoding images")
    width, height = -(-width // factor), -(-height // factor)
    buffer = np.empty((height, width, CHANNELS[mode]), np.uint8)
    colors = "RGB" if mode == "RGB" else "GRAY"
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colors, min_height=height, min_width=width, buffer=buffer)
    except ValueError as exc:  # the first warning, or the error that stopped decoding
        if _LEFT_OVER in str(exc):
            return buffer
        raise
    return pixels


def _opencv(data: bytes, header: Header, factor: int, mode: str) -> Pixels:
    cv2 = require("cv2", extra="images", purpose="Decoding images")
    rgb = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # since 4.11
    reduced = 0 if factor == 1 else getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{factor}")
    # JPEGs of 8 bits ignore IMREAD_ANYDEPTH.
    colors = {"RGB": rgb or cv2.IMREAD_COLOR, "L": cv2.IMREAD_GRAYSCALE, "I;16": cv2.IMREAD_ANYDEPTH}[mode]
    if header.format == "PNG":
        data = essential_png(data)
    flags = colors | reduced | cv2.IMREAD_IGNORE_ORIENTATION
    pixels: Pixels | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ValueError("OpenCV cannot read it")
    if mode != "RGB":
        return pixels[..., None]
    return pixels if rgb else np.ascontiguousarray(pixels[..., ::-1])


def _pillow(data: bytes, header: Header, factor: int, mode: str) -> Pixels:
    if header.format == "PNG":
        open_picture(io.BytesIO(data)).verify()  # the checksums, which Pillow does not check otherwise
    image = open_jxl(data) if header.format == "JXL" else open_picture(io.BytesIO(data))
    if header.format == "JPEG":
        width, height = header.stored_size
        image.draft("RGB" if mode == "RGB" else "L", (max(width // factor, 1), max(height // factor, 1)))
    image.load()
    return converted(image, mode)


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate and flip pixels upright, given the EXIF orientation."""
    if orientation == 1:
        return pixels
    dtype = pixels.dtype
    # Copying whole pixels is faster than copying single values.
    whole = pixels.view(f"V{pixels.shape[2] * dtype.itemsize}")[..., 0]
    if orientation in (3, 4, 6, 7):
        whole = whole[::-1]
    if orientation in (2, 3, 7, 8):
        whole = whole[:, ::-1]
    if orientation >= 5:
        whole = whole.T
    return np.ascontiguousarray(whole)[..., None].view(dtype)
