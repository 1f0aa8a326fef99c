"""Arrays in .npy and .npz format, out of bytes that nobody vouches for."""

from __future__ import annotations

import functools
import io
import math
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from feedline.datasets.array_file import opened_zip

_PREAMBLE = 10
"""Bytes that tell how long the header is; two more in format 2 and 3."""


# Any: of any type but objects.
def decode_npy(data: bytes) -> NDArray[Any]:
    """Return the array; ValueError if it is not there as a whole, or holds pickled objects.

    Example:
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(3))
        >>> decode_npy(file.getvalue())
        array([0, 1, 2])
    """
    found = view_of_npy(data)
    if found is None:  # format 3, for field names beyond Latin-1, which NumPy itself has to read
        stream = io.BytesIO(data)
        rare: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        if stream.tell() != len(data):
            raise ValueError(f"behind an array of shape {rare.shape} and {rare.dtype} there are more bytes than it has")
        return rare
    return found.copy("F" if found.flags.f_contiguous and not found.flags.c_contiguous else "C")


def view_of_npy(data: bytes, start: int = 0, stop: int | None = None) -> NDArray[Any] | None:
    """Return the array between two places of some bytes, without copying it; None if it has a format that is rare.

    Raises:
        ValueError: it is not there as a whole, or holds pickled objects.
    """
    stop = len(data) if stop is None else stop
    version = data[start + 6 : start + 7]
    if version == b"\x01":
        begin = start + _PREAMBLE + int.from_bytes(data[start + 8 : start + 10], "little")
    elif version == b"\x02":
        begin = start + _PREAMBLE + 2 + int.from_bytes(data[start + 8 : start + 12], "little")
    else:
        return None
    shape, fortran, dtype = _header(data[start : min(begin, stop)])
    count = math.prod(shape)
    if count * dtype.itemsize > stop - begin:
        raise ValueError(f"an array of shape {shape} and {dtype} needs more bytes than are there")
    if count * dtype.itemsize < stop - begin:
        raise ValueError(f"behind an array of shape {shape} and {dtype} there are more bytes than it has")
    flat = np.frombuffer(data, dtype, count, begin) if count * dtype.itemsize else np.empty(count, dtype)
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


# Fields of one name have the same header nearly always, and reading it takes ten times as long as all else.
@functools.lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(head)
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    else:
        shape, fortran, dtype = npy.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which can run any code when it is read")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array cannot have shape {shape}")
    return shape, fortran, dtype


# Any: arrays, and bytes for what is none.
def decode_npz(data: bytes, limit: int) -> dict[str, Any]:
    """Return the arrays by name; ValueError if they would take more than `limit` bytes, or are damaged."""
    with opened_zip(io.BytesIO(data)) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limit:
            raise ValueError(
                f"it unpacks to {unpacked} bytes, and at most {limit} are. If they are meant, raise max_field_bytes="
            )
        # Not by numpy.load, which reads as far as an array goes: only who reads to the end has the CRC compared.
        contents = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    return {name: decode_npy(one) if one.startswith(npy.MAGIC_PREFIX) else one for name, one in contents.items()}
