"""Checks what the headers of a file declare, before FFmpeg trusts them.

FFmpeg's reader of MP4 and QuickTime files allocates memory for every frame that a header declares, and a header of a
few bytes can declare billions. A frame takes at least a byte, so a file cannot have more frames than bytes; nor a table
more entries than fit into it. Matroska, WebM and AVI files declare their length, and FFmpeg accepts files whose end is
missing.
"""

from __future__ import annotations

import itertools
import os
from typing import BinaryIO

from feedline.system.sizes import check_size

_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts")
"""Boxes that contain the boxes with tables."""
_FIRST = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"sidx", b"moof", b"pnot")
_ENTRY_BYTES = {b"stts": 8, b"ctts": 8, b"stsc": 12, b"stco": 4, b"co64": 8, b"stss": 4, b"stps": 4, b"elst": 12}
"""Tables whose entries are in the file, and the least that an entry takes."""
_MOST_BOXES = 1_000_000
"""A recording of a day in fragments of a second has half as many."""
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_RIFF, _UNKNOWN = b"RIFF", 0xFFFFFFFF
"""AVI files written to a pipe do not know their length."""


def check_declared(file: BinaryIO, name: str) -> None:
    """Check a file that is at its beginning; leave formats other than MP4, Matroska and AVI to FFmpeg.

    Raises:
        CorruptSource: it declares more than it has.
    """
    head = file.read(8)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if head[4:] in _FIRST:
        _check_boxes(file, size, name)
    elif head[:4] == _EBML:
        _check_segment(file, size, name)
    elif head[:4] == _RIFF:
        _check_riff(file, size, name)


def _check_boxes(file: BinaryIO, size: int, name: str) -> None:
    ends = [size]
    for number in itertools.count():
        check_size(name, number, limit=_MOST_BOXES, option="the limit in feedline.video.declared", unit="boxes")
        place = file.tell()
        if place + 8 > ends[-1]:
            file.seek(ends.pop())
            if not ends:
                return
            continue
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        body = place + 8
        if length == 1:
            length, body = int.from_bytes(head[8:16], "big"), place + 16
        end = ends[-1] if length < body - place else min(place + length, ends[-1])
        if kind in _INSIDE:
            ends.append(end)
            file.seek(body)
            continue
        if kind in (b"stsz", b"stz2", b"trun"):
            file.seek(body)
            _check_samples(kind, file.read(12), size, name)
        elif kind in _ENTRY_BYTES:
            file.seek(body + 4)
            declared = int.from_bytes(file.read(4), "big") * _ENTRY_BYTES[kind]
            check_size(f"The table {kind.decode()!r} of {name}", declared, held=max(0, end - body - 8))
        file.seek(end)


def _check_samples(kind: bytes, head: bytes, size: int, name: str) -> None:
    what = f"The table {kind.decode()!r} of {name}"
    if kind == b"trun":
        check_size(what, int.from_bytes(head[4:8], "big"), held=size, unit="frames")
        return
    each = int.from_bytes(head[4:8], "big") if kind == b"stsz" else 0
    check_size(what, int.from_bytes(head[8:12], "big") * max(1, each), held=size)


def _check_segment(file: BinaryIO, size: int, name: str) -> None:
    """Compare the length of a Matroska segment, which follows the header, with the file."""
    file.seek(len(_EBML))
    header = _read_length(file)
    if header is None:
        return
    file.seek(header, os.SEEK_CUR)
    if file.read(len(_SEGMENT)) != _SEGMENT:
        return
    length = _read_length(file)
    if length is not None:
        check_size(name, length, held=size - file.tell())


def _read_length(file: BinaryIO) -> int | None:
    """Read a number as Matroska writes lengths; None if the length is unknown, as in a live recording."""
    first = file.read(1)[:1]
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    bits = 7 * (more + 1)
    value = int.from_bytes(first + file.read(more), "big") & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value


def _check_riff(file: BinaryIO, size: int, name: str) -> None:
    """Compare the lengths of an AVI file's parts with the file: it begins a new part after each gigabyte or so."""
    place = 0
    while file.seek(place) < size and (head := file.read(8))[:4] == _RIFF:
        length = int.from_bytes(head[4:], "little")
        if length == _UNKNOWN:
            return
        check_size(name, length, held=max(0, size - place - 8))
        place += 8 + length + length % 2
