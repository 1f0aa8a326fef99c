"""What an image file says of itself: format, size, orientation. No pixels are decoded for it.

JPEG, PNG and WebP are read here, in a few microseconds; other formats are left to Pillow. Nothing that a file declares
is believed: every offset is held against the length of the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from feedline.errors import CorruptSource, FeedlineError
from feedline.failures import words
from feedline.images.pillow import checked_picture

_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
"""Markers of JPEG frames that every decoder takes: baseline, extended and progressive, with Huffman codes."""
_OTHER_FRAMES = frozenset((0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_SAMPLING = frozenset(bytes((luma, 0x11, 0x11)) for luma in (0x11, 0x21, 0x22, 0x12, 0x41, 0x42))
"""Sampling factors of YCbCr that every decoder takes: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 and 4:1:0."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of an image before it is decoded."""

    format: str
    """As Pillow names it: "JPEG", "PNG", "WEBP" and so on."""
    width: int
    """Of the upright image: after its orientation was followed."""
    height: int
    orientation: int = 1
    """EXIF's: from 1, upright, to 8. `decode_image` follows it."""
    gpu: bool = False
    """True if nvJPEG takes it: a JPEG of 8 bits, gray or YCbCr, whose orientation is 1."""
    plain: bool = False
    """True if every decoder of its format takes it. Others are left to Pillow: CMYK, animations, rare formats."""
    body: int = 0
    """Where in a JPEG its frame header ends."""

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height in the file: before its orientation is followed."""
        return (self.height, self.width) if self.orientation in _SIDEWAYS else (self.width, self.height)


def read_header(data: bytes) -> Header:
    """Return what the file of an image says of itself.

    Args:
        data: the bytes of the file.

    Raises:
        CorruptSource: it is no image, of no format that is read, or cut off.
        MissingExtra: only Pillow can tell, and it is not installed.

    Example:
        >>> file = "89504e470d0a1a0a 0000000d49484452 00000002000000010802000000 0e3a3c3a 0000000049454e44"
        >>> read_header(bytes.fromhex(file))
        Header(format='PNG', width=2, height=1, orientation=1, gpu=False, plain=True, body=0)
    """
    try:
        if data[:2] == b"\xff\xd8":
            header = _jpeg(data)
        elif data[:8] == b"\x89PNG\r\n\x1a\n":
            header = _png(data)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            header = _webp(data)
        else:
            header = _other(data)
    except (IndexError, ValueError, struct.error) as exc:
        raise CorruptSource(
            f"A file of {len(data)} bytes does not say the size of its image: it is cut off or damaged. Write or copy "
            "it again."
        ) from exc
    if not header.width or not header.height:
        raise CorruptSource(
            f"A {header.format} file declares {header.width} x {header.height} pixels: it is damaged. Write or copy it "
            "again."
        )
    return header


def _upright(format_: str, width: int, height: int, orientation: int, *, plain: bool, body: int = 0) -> Header:
    if orientation in _SIDEWAYS:
        width, height = height, width
    return Header(format_, width, height, orientation, False, plain, body)


def _jpeg(data: bytes) -> Header:
    orientation, adobe, place = 1, None, 2
    while True:
        # As libjpeg does it: bytes before a marker are passed over, and 0xff may be repeated.
        place = data.index(0xFF, place) + 1
        while (marker := data[place]) == 0xFF:
            place += 1
        if marker <= 1 or 0xD0 <= marker <= 0xD8:  # no marker, or one without a length
            continue
        length = data[place + 1] << 8 | data[place + 2]
        start, place = place + 3, place + 1 + max(length, 2)
        if marker in _FRAMES:
            break
        if marker in _OTHER_FRAMES:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return _upright("JPEG", width, height, orientation, plain=False, body=place)
        if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            orientation = _exif_orientation(data[start + 6 : place])
        elif marker == 0xEE and data[start : start + 5] == b"Adobe" and length >= 14:
            adobe = data[start + 11]  # how its colors were changed; 0: not at all
        elif marker == 0xD9 or marker == 0xDA:
            raise ValueError("no frame header before the pixels")
    bits, height, width, components = struct.unpack_from(">BHHB", data, start)
    sampling = data[start + 7 : place : 3]
    gray = components == 1
    plain = bits == 8 and (gray or (components == 3 and sampling in _SAMPLING))
    # Without Adobe's marker, colors are RGB if components are named so.
    named_rgb = adobe is None and data[start + 6 : place : 3] == b"RGB"
    gpu = plain and orientation == 1 and (gray or (adobe != 0 and not named_rgb))
    if orientation in _SIDEWAYS:
        width, height = height, width
    return Header("JPEG", width, height, orientation, gpu, plain, place)


def _exif_orientation(exif: bytes) -> int:
    """Return what EXIF data says; 1 if it says nothing, or is damaged: it is beside the image, which may be right."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (place,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, place)
        for at in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, at)
            if tag == _ORIENTATION:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def _png(data: bytes) -> Header:
    orientation, plain, place = 1, True, 8
    if data[12:16] != b"IHDR":
        raise ValueError("no header chunk")
    width, height = struct.unpack_from(">II", data, 16)
    while True:  # to the end: EXIF data may come after the pixels
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IEND":
            return _upright("PNG", width, height, orientation, plain=plain)
        if kind == b"eXIf":
            orientation = _exif_orientation(data[place + 8 : place + 8 + length])
        elif kind == b"acTL":
            plain = False  # an animation
        place += 12 + length


def _webp(data: bytes) -> Header:
    size, kind = struct.unpack_from("<I4xI", data, 4)[0] + 8, data[12:16]
    if len(data) < size:
        raise ValueError("shorter than it declares")
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise ValueError("no key frame")
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("WEBP", width & 0x3FFF, height & 0x3FFF, plain=True)
    if kind == b"VP8L":
        (both,) = struct.unpack_from("<I", data, 21)
        return Header("WEBP", (both & 0x3FFF) + 1, (both >> 14 & 0x3FFF) + 1, plain=True)
    if kind != b"VP8X":
        raise ValueError("no chunk with pixels")
    width = int.from_bytes(data[24:27], "little") + 1
    height = int.from_bytes(data[27:30], "little") + 1
    return _upright("WEBP", width, height, _webp_orientation(data[:size]), plain=not data[20] & 2)


def _webp_orientation(data: bytes) -> int:
    place = 12
    while place + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, place)
        if kind == b"EXIF":
            return _exif_orientation(data[place + 8 : place + 8 + length].removeprefix(b"Exif\0\0"))
        place += 8 + length + length % 2
    return 1


def _other(data: bytes) -> Header:
    try:
        image = checked_picture(data)
        orientation = image.getexif().get(_ORIENTATION, 1)
    except FeedlineError:
        raise
    # Pillow's plugins raise whatever they meet in a damaged file: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        raise CorruptSource(
            f"{len(data)} bytes cannot be read as an image: {words(exc)}. They are damaged, cut off, no image, or of a "
            "format that is not read, such as EPS."
        ) from exc
    width, height = image.size
    if image.format == "TIFF":  # Pillow turns it itself, later versions already when they open it
        stored = image.tag_v2.get(256), image.tag_v2.get(257)
        if orientation in _SIDEWAYS and stored == (width, height):
            width, height = height, width
        orientation = 1
    return _upright(image.format, width, height, orientation if orientation in range(1, 9) else 1, plain=False)
