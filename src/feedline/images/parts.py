"""Limits on the number of parts in an image file: chunks of a PNG, scans of a JPEG.

Decoders spend time on every part, however few bytes it has, so a file of a few megabytes could keep one busy for
minutes. Parts are counted before a decoder sees the file. The limits are far above what programs write.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from feedline.errors import CorruptSource

MOST_CHUNKS = 1_000
CHUNK_BYTES = 1_024
"""A PNG may have `MOST_CHUNKS` chunks, and one more for every `CHUNK_BYTES` bytes of its file. Typical are chunks of 8
KiB and more for pixels, and fewer than twenty others.
"""
MOST_SEGMENTS = 10_000
"""Maximum number of segments of a JPEG before its first scan, and after it. Typical are fewer than thirty."""
MOST_SCANS = 100
"""Maximum number of scans of a JPEG. Typical are one, or ten if it is progressive."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
JPEG_MAGIC = b"\xff\xd8"
FRAMES = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of frame headers."""
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_SCAN, _END = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""A marker that begins a segment or ends the image. Scans only have 0xff before a zero or in restart markers."""

_chunk = struct.Struct(">I4s").unpack_from
_segment = struct.Struct(">BBH").unpack_from


def check_parts(data: bytes) -> None:
    """Reject a PNG or JPEG with too many parts. Other formats, and damaged files, are left to their decoder.

    Raises:
        CorruptSource: the file has too many parts.
    """
    if data.startswith(PNG_MAGIC):
        for _ in png_chunks(data):
            pass
    elif data.startswith(JPEG_MAGIC):
        check_scans(data)


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and length of each chunk, up to the end of the image or of the file.

    Raises:
        CorruptSource: there are too many chunks.
    """
    most = MOST_CHUNKS + len(data) // CHUNK_BYTES
    place = len(PNG_MAGIC)
    for _ in range(most):
        if place + 8 > len(data):
            return
        length, name = _chunk(data, place)
        yield name, place, length
        if name == b"IEND":
            return
        place += 12 + length
    raise CorruptSource(
        f"A PNG of {len(data):,} bytes has more than {most:,} chunks, the maximum that feedline accepts because they "
        "take long to decode. Encode it again."
    )


def essential_png(data: bytes) -> bytes:
    """Return a PNG without the chunks that do not affect pixels: texts, times, colour profiles.

    OpenCV prints a line for each of them that libpng considers invalid.
    """
    chunks = list(png_chunks(data))
    # A name that begins with a lower-case letter marks a chunk that decoders may skip.
    kept = [(place, length) for name, place, length in chunks if name[:1].isupper() or name == b"tRNS"]
    if len(kept) == len(chunks):
        return data
    return b"".join((PNG_MAGIC, *(data[place : place + 12 + length] for place, length in kept)))


def jpeg_segments(data: bytes, place: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yield marker, offset and end of each segment of a JPEG, up to its first scan or the end of the file.

    Raises:
        CorruptSource: there are too many segments.
    """
    for _ in range(MOST_SEGMENTS):
        if place < 0 or place + 4 > len(data):
            return
        start, marker, length = _segment(data, place)
        if start != 0xFF or marker <= 1 or marker >= 0xFF or 0xD0 <= marker <= 0xD8:
            # As in libjpeg: skip bytes before a marker, and repeated 0xff.
            place = data.find(0xFF, place if start != 0xFF else place + 1 + (marker != 0xFF))
            continue
        end = place + 2 + length
        yield marker, place, end
        if marker in (_SCAN, _END):
            return
        place = end
    raise _many_segments(data)


def _many_segments(data: bytes) -> CorruptSource:
    return CorruptSource(
        f"A JPEG of {len(data):,} bytes has more than {MOST_SEGMENTS:,} segments, the maximum that feedline accepts. "
        "It is damaged, or was written to take long to decode. Encode it again."
    )


def check_scans(data: bytes, place: int = 2) -> None:
    """Reject a JPEG with too many scans, each of which takes time for the whole image. Segments begin at `place`.

    Metadata, and data after the end of the image such as the video of a motion photo, may contain any bytes.

    Raises:
        CorruptSource: there are too many scans.
    """
    frame, components, start = 0, -1, len(data)
    for marker, at, _ in jpeg_segments(data, place):
        if marker in FRAMES:
            frame, components = marker, _byte(data, at + 9)
        elif marker == _SCAN:
            if frame not in _PROGRESSIVE and _byte(data, at + 4) == components:
                return  # all colours are in the first scan, and libjpeg rejects a second one
            start = at
    if data.count(b"\xff\xda", start) > MOST_SCANS:  # fast, and true for hardly any file
        _check_segments(data, start)


def _check_segments(data: bytes, place: int) -> None:
    """Reject a JPEG with too many scans or other segments from its first scan, at `place`, up to its end marker."""
    scans = 0
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, place)
        if found is None or data[found.start() + 1] == _END:
            return
        scans += data[found.start() + 1] == _SCAN
        if scans > MOST_SCANS:
            raise CorruptSource(
                f"A JPEG of {len(data):,} bytes has more than {MOST_SCANS} scans, the maximum that feedline accepts "
                "because they take long to decode. Encode it again."
            )
        place = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    raise _many_segments(data)


def _byte(data: bytes, place: int) -> int:
    return data[place] if place < len(data) else -1
