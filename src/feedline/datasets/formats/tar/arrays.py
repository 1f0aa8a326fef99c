"""Decodes arrays in .npy, .npz and .ten format from untrusted bytes."""

from __future__ import annotations

import functools
import io
import math
import struct
import zipfile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from feedline.datasets.formats.array_file import opened_zip, read_header
from feedline.system.sizes import SampleSize, check_size

_PREAMBLE = 10
"""Bytes up to the end of the header length; two more in formats 2 and 3."""
_MAGIC = b"~TenBin~"
_ALIGN = 64
_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def decode_npy(data: bytes) -> NDArray[np.generic]:
    """Return the array. Raises ValueError: it is incomplete, or holds pickled objects."""
    found = view_of_npy(data)
    if found is None:  # format 3, for field names beyond Latin-1: only NumPy itself reads it
        stream = io.BytesIO(data)
        _, shape, _, dtype = read_header(stream)
        _check_held(shape, dtype, len(data) - stream.tell())
        rare: NDArray[np.generic] = npy.read_array(io.BytesIO(data), allow_pickle=False)
        return rare
    return found.copy("F" if found.flags.f_contiguous and not found.flags.c_contiguous else "C")


def view_of_npy(data: bytes | memoryview) -> NDArray[np.generic] | None:
    """Return the array in some bytes, without copying it; None for a rare format.

    Raises ValueError: it is incomplete, or holds pickled objects.
    """
    version = data[6:7]
    if version == b"\x01":
        begin = _PREAMBLE + int.from_bytes(data[8:10], "little")
    elif version == b"\x02":
        begin = _PREAMBLE + 2 + int.from_bytes(data[8:12], "little")
    else:
        return None
    shape, fortran, dtype = _header(bytes(data[:begin]))
    count = _check_held(shape, dtype, len(data) - begin)
    flat = np.frombuffer(data, dtype, count, begin) if count else np.empty(0, dtype)
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


def _check_held(shape: tuple[int, ...], dtype: np.dtype[np.generic], held: int) -> int:
    """Return the number of values, after checking that exactly their bytes are present."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size != held:
        check_size(f"an array of shape {shape} and {dtype}", size, held=max(0, held))
        if size < held:
            raise ValueError(f"behind an array of shape {shape} and {dtype} there are more bytes than it has")
    return count


# Fields of one name nearly always have the same header, and parsing it takes ten times as long as everything else.
@functools.lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    _, shape, fortran, dtype = read_header(io.BytesIO(head))
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which can run any code when it is read")
    return shape, fortran, dtype


# object: arrays, and the bytes of members that are not arrays.
def decode_npz(data: bytes, total: SampleSize) -> dict[str, object]:
    """Return the arrays by name; raise some exception if they would take too many bytes, or are damaged."""
    with unpackable(data, total) as archive:
        return {
            entry.filename.removesuffix(".npy"): decode_npy(data) if entry.filename.endswith(".npy") else data
            for entry in archive.infolist()
            for data in [archive.read(entry)]
        }


def unpackable(data: bytes, total: SampleSize) -> zipfile.ZipFile:
    """Open a zip archive, and count the bytes of its members once decompressed.

    Raises CorruptSource: there are too many; zipfile.BadZipFile: the archive is damaged.
    """
    archive = opened_zip(io.BytesIO(data))
    total.add("a zip archive", sum(entry.file_size for entry in archive.infolist()))
    return archive


# object: of any of these types.
def decode_ten(data: bytes) -> list[NDArray[np.generic]]:
    """Return the arrays that the webdataset package stored. Raises ValueError: there are none, or one is incomplete."""
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


def _array(header: bytes, content: bytes) -> NDArray[np.generic]:
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
