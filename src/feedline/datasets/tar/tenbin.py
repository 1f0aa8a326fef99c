"""The webdataset package's format for several arrays in one field (`.ten`, `.tb`)."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"~TenBin~"
_ALIGN = 64
_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


# Any: of any of these types.
def decode(data: bytes) -> list[NDArray[Any]]:
    """Return the arrays; raises ValueError if there are none, or not whole."""
    chunks = _chunks(data)
    if len(chunks) % 2:
        raise ValueError("an array has no content")
    return [_array(header, content) for header, content in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: bytes) -> list[bytes]:
    chunks, at = [], 0
    while at < len(data):
        if data[at : at + 8] != _MAGIC or at + 16 > len(data):
            raise ValueError(f"there is no {_MAGIC.decode()} at byte {at}")
        (size,) = struct.unpack("@q", data[at + 8 : at + 16])
        at += 16
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a chunk has {size} bytes by its header, but {len(data) - at} are left")
        chunks.append(data[at : at + size])
        at += -(-size // _ALIGN) * _ALIGN
    return chunks


def _array(header: bytes, content: bytes) -> NDArray[Any]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError("the header of an array is too short")
    name, _, rank, *shape = struct.unpack(f"@{len(header) // 8}q", header)
    kind = struct.pack("@q", name).rstrip(b"\0").decode("ascii", "replace")
    if kind not in _TYPES:
        raise ValueError(f"arrays of type {kind!r} are unknown")
    shape = shape[:rank] if rank >= 0 else [-1]
    if len(shape) != rank or min(shape, default=0) < 0 or math.prod(shape) * int(kind[1]) > len(content):
        raise ValueError(f"an array of shape {tuple(shape)} is not there as a whole")
    return np.frombuffer(content, kind, math.prod(shape)).reshape(shape).copy()
