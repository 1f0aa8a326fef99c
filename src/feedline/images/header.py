"""Headers of image files: format, size and orientation, read without decoding pixels.

JPEG, PNG and WebP are read here, and JPEG XL in `jxl.py`, in a few microseconds; other formats are left to Pillow.
Values in a file are never trusted: offsets are checked against the length of the file, sizes against what the file can
hold and what is accepted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from feedline.errors import BadOption, CorruptSource, FeedlineError
from feedline.images.jxl import is_jxl, jxl_size
from feedline.images.medium import FileBytes
from feedline.images.parts import FRAMES, JPEG_MAGIC, PNG_MAGIC, check_scans, jpeg_segments, png_chunks
from feedline.images.pillow import check_pixels, checked_picture
from feedline.system.failures import words
from feedline.system.sizes import SampleSize, check_size

_ORIENTATION = 0x0112
"""The EXIF tag."""
_SIDEWAYS = (5, 6, 7, 8)

_SAMPLING = frozenset(bytes((luma, 0x11, 0x11)) for luma in (0x11, 0x21, 0x22, 0x12, 0x41))
"""Sampling factors of three colours that every decoder supports: 4:4:4, 4:2:2, 4:2:0, 4:4:0 and 4:1:1."""
_QUARTERED = b"\x41"
"""Luma's sampling factors in 4:1:1, which decoding units of GPUs lack."""
_JPEG_PIXELS_PER_BYTE = 512
"""Maximum number of pixels per byte of a plain JPEG: it has at least one bit for each block of 8 x 8, for the mean."""

_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Number of channels by colour type."""
_DEFLATE_RATIO = 1032
"""Maximum compression ratio of deflate."""

_frame = struct.Struct(">BHHB").unpack_from


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata of an image, known before it is decoded."""

    format: str
    """As Pillow names it: "JPEG", "PNG", "WEBP" and so on."""
    width: int
    """Width of the upright image, after its orientation was applied; likewise `height`."""
    height: int
    orientation: int = 1
    """The EXIF orientation, from 1 (upright) to 8. `decode_image` applies it."""
    plain: bool = False
    """True if every decoder of its format supports it. Others are left to Pillow: CMYK, animations, rare formats."""
    gpu: bool = False
    """True if the decoding units of GPUs support it: a baseline JPEG, grey or YCbCr, with orientation 1."""
    height_at: int = 0
    """Offset of the height in a JPEG whose upper rows can be decoded alone; 0 for all other files."""

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height in the file, before its orientation is applied."""
        return (self.height, self.width) if self.orientation in _SIDEWAYS else (self.width, self.height)


def read_header(data: FileBytes, total: SampleSize | None = None) -> Header:
    """Read the header of an image file.

    Args:
        data: the bytes of the file.
        total: the size of the sample that the image is part of; the pixels are added to it.

    Raises:
        CorruptSource: the file is truncated, not an image, or in an unsupported format; or it declares more pixels than
            the file can hold, or than `PIL.Image.MAX_IMAGE_PIXELS` or `$FEEDLINE_MAX_SAMPLE_BYTES` allow.
        MissingExtra: Pillow is not installed.

    Example:
        >>> file = "89504e470d0a1a0a 0000000d49484452 00000002000000010802000000 0e3a3c3a 0000000049454e44"
        >>> read_header(bytes.fromhex(file))
        Header(format='PNG', width=2, height=1, orientation=1, plain=True, gpu=False, height_at=0)
    """
    data = file_bytes(data)
    if data[:2] == JPEG_MAGIC:
        read = _jpeg
    elif data[:8] == PNG_MAGIC:
        read = _png
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        read = _webp
    elif is_jxl(data):
        read = _jxl
    else:
        read = _other
    try:
        header = read(data)
    except (IndexError, struct.error) as exc:
        raise _damaged(data, "ends inside its header") from exc
    if not header.width or not header.height:
        raise _damaged(data, f"declares an image of {header.width} x {header.height} pixels")
    check_pixels(header.width, header.height, len(data), total)
    return header


def file_bytes(data: FileBytes) -> bytes:
    """Return the contents of a file as bytes.

    Raises:
        BadOption: it is anything else, such as a path.
    """
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as exc:
        raise BadOption(
            f"The bytes of an image file are needed, but a {type(data).__name__} was given. Read the file, and pass "
            "its contents."
        ) from exc


def _damaged(data: bytes, what: str) -> CorruptSource:
    return CorruptSource(
        f"An image file of {len(data)} bytes {what}: it is truncated or damaged. Write or copy it again."
    )


def _upright(format_: str, size: tuple[int, int], orientation: int, *, plain: bool) -> Header:
    width, height = size[::-1] if orientation in _SIDEWAYS else size
    return Header(format_, width, height, orientation, plain)


# -- JPEG --------------------------------------------------------------------------------------------------------------


def _jpeg(data: bytes) -> Header:
    orientation, adobe, restarts = 1, None, False
    for marker, place, end in jpeg_segments(data):
        if marker in FRAMES:
            break
        if marker == 0xE1 and data[place + 4 : place + 10] == b"Exif\0\0":
            orientation = _exif_orientation(data[place + 10 : end])
        elif marker == 0xEE and data[place + 4 : place + 9] == b"Adobe":
            adobe = data[place + 15]  # the colour transform; 0 for none
        elif marker == 0xDD:
            restarts = True
        elif marker == 0xDA or marker == 0xD9:
            raise _damaged(data, "has no frame header before its pixels")
    else:
        raise _damaged(data, "ends inside its header")
    bits, height, width, components = _frame(data, place + 4)
    names, sampling = data[place + 10 : end : 3], data[place + 11 : end : 3]
    plain = marker <= 0xC2 and bits == 8 and (components == 1 or (components == 3 and sampling in _SAMPLING))
    usual = sampling == b"\x11" if components == 1 else adobe != 0 and (adobe is not None or names != b"RGB")
    _check_jpeg(data, place, end, width * height, plain=plain)
    gpu = plain and marker == 0xC0 and orientation == 1 and usual and sampling[:1] != _QUARTERED
    # Sequential, upright, all colours in one scan, and without restart intervals, after which decoders expect a marker.
    scan = data.find(b"\xff\xda\0\x08\x01" if components == 1 else b"\xff\xda\0\x0c\x03", end, end + 1000)
    is_one_piece = scan > 0 and not restarts and b"\xff\xdd" not in data[end:scan]
    in_part = plain and marker != 0xC2 and orientation == 1 and is_one_piece
    if orientation in _SIDEWAYS:
        width, height = height, width
    return Header("JPEG", width, height, orientation, plain, gpu, place + 5 if in_part else 0)


def _check_jpeg(data: bytes, place: int, end: int, pixels: int, *, plain: bool) -> None:
    """Reject a JPEG that is truncated, which not every decoder does, or that would take long for its size.

    Args:
        data: the file.
        place: where the frame header begins.
        end: where it ends.
        pixels: the number of pixels that it declares.
        plain: as in its `Header`.
    """
    if data.rfind(b"\xff\xd9", end) < 0:  # cannot occur among the pixels
        raise _damaged(data, "has no end marker")
    if plain:
        check_size(
            lambda: f"A JPEG of {len(data)} bytes", pixels, held=len(data) * _JPEG_PIXELS_PER_BYTE, unit="pixels"
        )
    check_scans(data, place)


def _exif_orientation(exif: bytes) -> int:
    """Return the orientation in EXIF data; 1 if it has none or is damaged, because the image itself may be intact."""
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


# -- other formats -----------------------------------------------------------------------------------------------------


def _png(data: bytes) -> Header:
    name, width, height, depth, color = struct.unpack_from(">4sIIBB", data, 12)
    if name != b"IHDR" or color not in _PNG_CHANNELS:
        raise _damaged(data, "has no valid PNG header")
    row = (width * depth * _PNG_CHANNELS[color] + 7) // 8
    check_size(lambda: f"A PNG of {len(data)} bytes", row * height, held=len(data) * _DEFLATE_RATIO)
    orientation, plain = 1, True
    for name, place, length in png_chunks(data):  # to the end: EXIF data may follow the pixels
        if name == b"IEND":
            return _upright("PNG", (width, height), orientation, plain=plain)
        if name == b"eXIf":
            orientation = _exif_orientation(data[place + 8 : place + 8 + length])
        elif name == b"acTL":
            plain = False  # an animation
    raise _damaged(data, "has no end")


def _webp(data: bytes) -> Header:
    size, name, flags = struct.unpack_from("<I4x4s4xB", data, 4)
    if len(data) < size + 8:
        raise _damaged(data, f"declares {size + 8} bytes")
    if name == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("WEBP", width & 0x3FFF, height & 0x3FFF, plain=True)
    if name == b"VP8L":
        (sides,) = struct.unpack_from("<I", data, 21)
        return Header("WEBP", (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1, plain=True)
    if name != b"VP8X":
        raise _damaged(data, "has no valid WebP header")
    stored = int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return _upright("WEBP", stored, _webp_orientation(data[: size + 8]), plain=not flags & 2)  # 2: an animation


def _webp_orientation(data: bytes) -> int:
    place = 12
    while place + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, place)
        if name == b"EXIF":
            return _exif_orientation(data[place + 8 : place + 8 + length].removeprefix(b"Exif\0\0"))
        place += 8 + length + length % 2
    return 1


def _jxl(data: bytes) -> Header:
    width, height = jxl_size(data)
    return Header("JXL", width, height)  # the decoder turns it


def _other(data: bytes) -> Header:
    if not data:
        raise CorruptSource("The image file is empty. Write or copy it again, or leave it out.")
    try:
        image: Any = checked_picture(data)  # Any: the class of each format has attributes of its own
        orientation = image.getexif().get(_ORIENTATION, 1)
    except FeedlineError:
        raise
    # Pillow's plugins raise many types for damaged files: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        reason = words(exc).partition(" <_io.")[0]  # without the address of Pillow's file
        raise CorruptSource(
            f"{len(data)} bytes cannot be read as an image: {reason}. They are damaged, truncated, not an image, "
            "or in a format that is not supported, such as EPS."
        ) from exc
    if image.format == "JPEG2000" and data.rfind(b"\xff\xd9") < 0:  # Pillow may return grey pixels for it
        raise _damaged(data, "has no end marker")
    size = image.size
    if image.format == "TIFF":  # Pillow rotates it: on loading or, in later versions, on opening
        if orientation in _SIDEWAYS and size == (image.tag_v2.get(256), image.tag_v2.get(257)):
            size = size[::-1]
        orientation = 1
    return _upright(image.format, size, orientation if orientation in range(1, 9) else 1, plain=False)
