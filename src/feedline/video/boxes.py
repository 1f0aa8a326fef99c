"""Checks the tables that MP4 and QuickTime files declare, before FFmpeg allocates memory for them.

FFmpeg's reader allocates memory for every frame that a header declares, and a header of a few bytes can declare
billions. A frame takes at least a byte, so a file cannot have more frames than bytes; nor a table more entries than fit.
"""

from __future__ import annotations

import itertools
import os
from typing import BinaryIO

from feedline.types.sizes import check_size

_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts")
"""Boxes that hold the boxes with tables."""
_FIRST = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"sidx", b"moof", b"pnot")
_ENTRY_BYTES = {b"stts": 8, b"ctts": 8, b"stsc": 12, b"stco": 4, b"co64": 8, b"stss": 4, b"stps": 4, b"elst": 12}
"""Tables whose entries are in the file, and the least that an entry takes."""
_MOST_BOXES = 1_000_000
"""A recording of a day in fragments of a second has half as many."""


# Any seekable binary file.
def check_counts(file: BinaryIO, name: str) -> None:
    """Reject an MP4 file that declares more samples than it has bytes; leave other files to FFmpeg.

    Raises:
        CorruptSource: a table is larger than the file.
    """
    if file.read(8)[4:] not in _FIRST:
        return
    size = file.seek(0, os.SEEK_END)
    ends = [size]
    file.seek(0)
    for number in itertools.count():
        check_size(name, number, limit=_MOST_BOXES, option="the limit in feedline.video.boxes", unit="boxes")
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
