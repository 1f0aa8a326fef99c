"""Arrays in .npy and .npz format, out of bytes that nobody vouches for."""

from __future__ import annotations

import functools
import io
import math
import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from feedline.datasets.array_file import opened_zip, read_header
from feedline.values.sizes import SampleSize, check_size

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
        _, shape, _, dtype = read_header(stream)
        _check_held(shape, dtype, len(data) - stream.tell())
        rare: NDArray[Any] = npy.read_array(io.BytesIO(data), allow_pickle=False)
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
    count = _check_held(shape, dtype, stop - begin)
    flat = np.frombuffer(data, dtype, count, begin) if count else np.empty(0, dtype)
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


def _check_held(shape: tuple[int, ...], dtype: np.dtype[Any], held: int) -> int:
    """Return how many values there are, if their bytes are there, and no others."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size != held:
        check_size(f"an array of shape {shape} and {dtype}", size, held=max(0, held))
        if size < held:
            raise ValueError(f"behind an array of shape {shape} and {dtype} there are more bytes than it has")
    return count


# Fields of one name have the same header nearly always, and reading it takes ten times as long as all else.
@functools.lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    _, shape, fortran, dtype = read_header(io.BytesIO(head))
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which can run any code when it is read")
    return shape, fortran, dtype


# Any: arrays, and the bytes of members that are none.
def decode_npz(data: bytes, total: SampleSize) -> dict[str, Any]:
    """Return the arrays by name; an exception of some kind if they would take too many bytes, or are damaged."""
    with unpackable(data, total) as archive:
        return {
            entry.filename.removesuffix(".npy"): _of_member(entry.filename, archive.read(entry))
            for entry in archive.infolist()
        }


def _of_member(name: str, data: bytes) -> Any:
    return decode_npy(data) if name.endswith(".npy") else data


def unpackable(data: bytes, total: SampleSize) -> zipfile.ZipFile:
    """Open a zip archive, and count what its members take once they are unpacked.

    Raises:
        CorruptSource: it is too much.
        zipfile.BadZipFile: it is damaged.
    """
    archive = opened_zip(io.BytesIO(data))
    total.add("a zip archive", sum(entry.file_size for entry in archive.infolist()))
    return archive
