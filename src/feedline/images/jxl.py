"""JPEG XL: the size of an image from the first bits of its file, and its pixels from imagecodecs (libjxl).

The size is read here because decoders of JPEG XL do not limit it: a file of a few bytes may declare 2^60 pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require

CODESTREAM = b"\xff\x0a"
CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n"
"""The first bytes of a bare image, and of one in boxes, beside its metadata."""

_HEADER_BYTES = 48
"""More than everything up to the number of bits takes, signature included."""
_MOST_BOXES = 1_000
"""Boxes before the image that are accepted. Typical are three."""
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_SIDEWAYS = 5
"""From here on, orientations exchange width and height."""


def is_jxl(data: bytes) -> bool:
    """True if a file begins like a JPEG XL."""
    return data.startswith((CODESTREAM, CONTAINER))


def jxl_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the upright image.

    Raises:
        CorruptSource: the file ends before its size, or has no image.
    """
    return _read(data)[0]


def jxl_pixels(data: bytes) -> NDArray[np.uint8 | np.uint16]:
    """Decode the upright image, the first one of an animation: uint8, or uint16 for grey with more than 8 bits.

    It has the axes height and width and, unless it is grey, channel. Check the size first. Does not hold the GIL.

    Raises:
        CorruptSource: the file is truncated or damaged.
        MissingExtra: imagecodecs is not installed.
    """
    imagecodecs = require("imagecodecs", extra="jxl", purpose="Decoding JPEG XL")
    white = (1 << _read(data)[1]) - 1
    try:
        # One thread, because the workers provide the parallelism. Any: integers or floats.
        pixels: NDArray[Any] = imagecodecs.jpegxl_decode(data, index=0, numthreads=1)
    except (RuntimeError, ValueError) as exc:
        raise CorruptSource(
            f"A JPEG XL of {len(data)} bytes cannot be decoded: {words(exc)}. It is damaged or truncated, or it has "
            "more channels than an image. Write or copy it again."
        ) from exc
    if pixels.dtype.kind == "f":
        floats: NDArray[np.float64] = np.nan_to_num(pixels).clip(0, 1)
        return np.rint(floats * 255).astype(np.uint8)
    most = np.iinfo(pixels.dtype).max
    if white < most:  # such as 1,023 for 10 bits
        pixels = (pixels.astype(np.uint32).clip(0, white) * most // white).astype(pixels.dtype)
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 and pixels.ndim == 3 else pixels


def _read(data: bytes) -> tuple[tuple[int, int], int]:
    """Return the size of the upright image, and the number of bits in a value."""
    bits = _Bits(_codestream(data)[len(CODESTREAM) :])
    try:
        width, height = _size(bits)
        orientation, depth = (1, 8) if bits.take(1) else _metadata(bits)
    except IndexError as exc:
        raise CorruptSource(
            f"A JPEG XL of {len(data)} bytes ends inside its header: it is truncated or damaged. Write or copy it "
            "again."
        ) from exc
    return ((height, width) if orientation >= _SIDEWAYS else (width, height)), depth


class _Bits:
    """Reads numbers of so many bits, the lowest first."""

    def __init__(self, data: bytes) -> None:
        self._left = 8 * len(data)
        self._value = int.from_bytes(data, "little")

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError("there are not so many bits")
        found = self._value & ((1 << count) - 1)
        self._value >>= count
        return found

    def choose(self, *forms: tuple[int, int]) -> int:
        """Read which of four forms a number has: the least value, and the number of bits to add to it."""
        least, count = forms[self.take(2)]
        return least + self.take(count)


def _size(bits: _Bits) -> tuple[int, int]:
    small = bits.take(1)

    def side() -> int:
        return 8 * (bits.take(5) + 1) if small else bits.choose((1, 9), (1, 13), (1, 18), (1, 30))

    height = side()
    return _width(bits, height, side), height


def _width(bits: _Bits, height: int, side: Callable[[], int]) -> int:
    ratio = bits.take(3)
    if not ratio:
        return side()
    times, by = _RATIOS[ratio - 1]
    return height * times // by


def _metadata(bits: _Bits) -> tuple[int, int]:
    """Return the orientation, and the number of bits in a value."""
    orientation = 1
    if bits.take(1):
        orientation = bits.take(3) + 1
        if bits.take(1):
            _size(bits)  # at which to show it
        if bits.take(1):
            _skip_preview(bits)
        if bits.take(1):  # an animation: ticks, loops, whether there are time codes
            bits.choose((100, 0), (1000, 0), (1, 10), (1, 30))
            bits.choose((1, 0), (1001, 0), (1, 8), (1, 10))
            bits.choose((0, 0), (0, 3), (0, 16), (0, 32))
            bits.take(1)
    forms = ((32, 0), (16, 0), (24, 0), (1, 6)) if bits.take(1) else ((8, 0), (10, 0), (12, 0), (1, 6))
    return orientation, bits.choose(*forms)


def _skip_preview(bits: _Bits) -> None:
    small = bits.take(1)

    def side() -> int:
        forms = ((16, 0), (32, 0), (1, 5), (33, 9)) if small else ((1, 6), (65, 8), (321, 10), (1345, 12))
        return bits.choose(*forms)

    _width(bits, side(), side)


def _codestream(data: bytes) -> bytes:
    """Return the first bytes of the image, without the boxes around it; fewer if it ends before."""
    if data.startswith(CODESTREAM):
        return data[:_HEADER_BYTES]
    found, place = b"", len(CONTAINER)
    for _ in range(_MOST_BOXES):
        if len(found) >= _HEADER_BYTES or place + 8 > len(data):
            break
        size, name = struct.unpack_from(">I4s", data, place)
        begin = place + 8
        if size == 1:  # the size is behind the name, in 64 bits
            size, begin = int.from_bytes(data[begin : begin + 8], "big"), begin + 8
        end = place + size if size else len(data)
        if name == b"jxlp":  # a part of the image, with a number in front
            found += data[begin + 4 : min(end, begin + 4 + _HEADER_BYTES)]
        elif name == b"jxlc":
            return data[begin : min(end, begin + _HEADER_BYTES)]
        place = max(end, begin)
    return found
