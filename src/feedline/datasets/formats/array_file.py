"""Arrays in files: .npy files and NumPy's own mapped arrays are mapped into memory, .npz files are read.

An `ArrayFile` records where the numbers are and what shape and type they must have. It is sent to other processes in
place of the array; each process maps the file itself, and the operating system keeps one copy of the pages for all.

If a file is truncated while it is mapped, a process that reads the missing part is killed (SIGBUS). No check can rule
that out: it may happen between the check and the read. So files are checked in full when they are opened, and not
again.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from feedline.datasets.framework.checksums import AGAIN, Checked, Compared, check_seal, damaged, from_text
from feedline.datasets.framework.form import block_sums, check_count, in_packed_order
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.sizes import check_size, most_bytes

_ZIP_END = struct.Struct("<8xHHIIH")
"""Last record of a zip file: members in this file and in all; size and offset of the member list; comment size."""
_ZIP_END_BYTES = _ZIP_END.size + 65_535
"""That record begins within this many bytes of the end of a zip file."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Checksums of the numbers in a file, block by block."""

    block_bytes: int
    sums: NDArray[np.uint32]
    compared: Compared
    """Which checksums have been compared."""


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file."""

    path: str
    """Absolute."""
    offset: int
    """Byte at which the numbers begin."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[np.generic]
    has_header: bool = True
    """False for a file of bare numbers; only the mapped array knew their shape and type."""
    sums: Sums | None = None
    """Checksums of its bytes, if `feedline pack` wrote it."""

    @property
    def end(self) -> int:
        """The byte after the last number."""
        if 0 in self.shape:
            return self.offset
        last = sum(max(0, (size - 1) * stride) for size, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize

    def mapped(self) -> NDArray[np.generic]:
        """Map the file read-only.

        Raises SourceError: the file is gone; SourceChanged: it now holds another array; CorruptSource: it is
        incomplete.
        """
        found = find_npy(self.path) if self.has_header else self
        if (found.shape, found.dtype, found.strides) != (self.shape, self.dtype, self.strides):
            raise SourceChanged(
                f"{self.path} has changed since the dataset was created: it was {_text(self)}, and is now "
                f"{_text(found)}. Create the dataset again."
            )
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        with _opened(self.path) as file:
            _check_end(found, os.fstat(file.fileno()).st_size, is_own=False)
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(self.shape, self.dtype, memory, found.offset, self.strides)

    def row_check(self, array: NDArray[np.generic]) -> RowCheck | None:
        """Return a check that compares checksums before rows are read; None if there are no checksums.

        `array` is what `mapped` returned.
        """
        return None if self.sums is None or array.size == 0 else RowCheck(self.path, self.sums, array)


class RowCheck:
    """Compares the checksums of the blocks that contain given rows of a mapped array."""

    def __init__(self, path: str, sums: Sums, array: NDArray[np.generic]) -> None:
        self._path = path
        self._block_bytes = sums.block_bytes
        self._row_bytes = array.strides[0]
        self._count = len(array)
        self._flat = array.reshape(-1).view(np.uint8)
        is_aligned = self._block_bytes % self._row_bytes == 0
        self._most = 1 if is_aligned else -(-self._row_bytes // self._block_bytes) + 1
        """The most blocks that a row can span."""
        self._checked = Checked(sums.sums, self._read, self._name, sums.compared)

    @property
    def is_complete(self) -> bool:
        """True if all blocks have been compared."""
        return self._checked.is_complete

    def __call__(self, rows: NDArray[np.int64]) -> None:
        """Compare the checksums of rows that have not been compared yet. Raises CorruptSource: one differs."""
        if self._checked.is_complete:
            return
        known = rows[(rows >= -self._count) & (rows < self._count)]  # reading other rows raises IndexError
        starts = np.where(known < 0, known + self._count, known) * self._row_bytes
        blocks = starts // self._block_bytes
        if self._most > 1:
            last = (starts + self._row_bytes - 1) // self._block_bytes
            blocks = np.minimum(blocks[:, None] + np.arange(self._most), last[:, None]).reshape(-1)
        self._checked.check(blocks)

    def _read(self, block: int) -> NDArray[np.uint8]:
        return self._flat[block * self._block_bytes : (block + 1) * self._block_bytes]

    def _name(self, block: int) -> str:
        start, stop = block * self._block_bytes, (block + 1) * self._block_bytes
        last = min(self._count, -(-stop // self._row_bytes)) - 1
        return f"{self._path}, in rows {start // self._row_bytes} to {last},"


def _text(array: ArrayFile) -> str:
    return f"{array.dtype} of shape {array.shape}"


def find_npy(path: str) -> ArrayFile:
    """Return the array of a .npy file, from its header.

    Raises SourceError: the file cannot be opened; CorruptSource: it is not a .npy file, or incomplete; BadOption: its
    array cannot be mapped, or cannot be batched.
    """
    with _opened(path) as file:
        found = _header(file, path)
        _check_end(found, os.fstat(file.fileno()).st_size)
    return found


def read_npz(path: str, wanted: Container[str] | None = None) -> dict[str, NDArray[np.generic] | None]:
    """Return the arrays of a .npz file by name, read into memory; None for unwanted ones.

    Raises the same errors as `find_npy`, and CorruptSource if the CRC of an array differs, or it takes too much memory.
    """
    with _opened(path) as file:
        try:
            archive = opened_zip(file)
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as exc:
            raise CorruptSource(f"{path} is not a .npz file, or is incomplete: {words(exc)}.") from exc
        found: dict[str, NDArray[np.generic] | None] = {}
        with archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                is_wanted = wanted is None or name in wanted
                found[name] = _member(archive, info, f"{name!r} of {path}") if is_wanted else None
        return found


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[np.generic]:
    if not info.filename.endswith(".npy"):
        raise BadOption(f"{name} is not an array: numpy.savez did not write this file. Choose others with fields=.")
    if info.compress_type != zipfile.ZIP_STORED:
        check_size(name, info.file_size, limit=most_bytes())
    try:
        with archive.open(info) as member:
            header = _header(member, name)
            _check_end(header, info.file_size)
            data = member.read()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as exc:
        if isinstance(exc, SourceError):
            raise
        raise CorruptSource(f"{name} is damaged: {words(exc)}. Get the file again.") from exc
    return np.ndarray(header.shape, header.dtype, data, 0, header.strides)


def find_folder(path: str, wanted: Container[str] | None = None) -> dict[str, ArrayFile | None]:
    """Return the arrays of all .npy files in a folder by name; None for unwanted ones.

    They are sorted by name, or in field order if `feedline pack` wrote the folder. Raises the same errors as
    `find_npy`.
    """
    files = {file.stem: file for file in sorted(Path(path).glob("*.npy"))}
    if not files:
        raise BadOption(f"{path} is a folder without .npy files. It needs one such file for each field of the dataset.")
    stored: bytes | None = None
    with contextlib.suppress(OSError):
        stored = (Path(path) / "feedline.json").read_bytes()
    if stored is not None:
        check_seal(f"{path}/feedline.json", stored)
    found = {
        name: find_npy(str(files[name])) if wanted is None or name in wanted else None
        for name in in_packed_order(files, stored)
    }
    for array in found.values():
        if array is not None:
            check_count(array.path, stored, array.shape[0])
    sums = block_sums(stored)
    return {name: None if array is None else _with_sums(array, sums.get(name)) for name, array in found.items()}


# Any: what JSON holds.
def _with_sums(array: ArrayFile, stored: Any) -> ArrayFile:
    """Return an array with the checksums that `feedline pack` stored.

    Raises CorruptSource: the header's checksum differs, or the stored checksums are damaged.
    """
    if stored is None:
        return array
    try:
        header, size, sums = int(stored["header"]), int(stored["bytes"]), from_text(stored["blocks"])
        if size <= 0 or len(sums) != -(-(array.end - array.offset) // size):
            raise ValueError("their number is wrong")
    except (KeyError, TypeError, ValueError) as exc:
        raise CorruptSource(f"The checksums of {array.path} are damaged: {words(exc)}. {AGAIN}") from exc
    with _opened(array.path) as file:
        if zlib.crc32(file.read(array.offset)) != header:
            raise damaged(f"The header of {array.path}")
    return replace(array, sums=Sums(size, sums, Compared(len(sums))))


def find_mapped(array: object) -> ArrayFile | None:
    """Return where in its file a mapped array, or a part of one, lies; None for any other array.

    Also None for mode "c", whose memory may differ from the file, and for mappings of an open file, which have no name.
    """
    if not isinstance(array, np.memmap) or array.mode not in ("r", "r+") or array.filename is None:
        return None
    base: object = array  # arrays, then the mapping itself
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap) or array.dtype.hasobject or array.dtype.names or array.size == 0:
        return None
    start = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    # NumPy's mapping starts at the last multiple of this before the numbers; all views of an array keep its `offset`.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = begin + array.__array_interface__["data"][0] - start
    path = os.path.abspath(array.filename)
    return ArrayFile(path, offset, array.shape, array.strides, array.dtype, has_header=False)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError as exc:
        raise SourceError(f"There is no file {path}.") from exc
    except OSError as exc:
        raise SourceError(f"{path} cannot be opened: {words(exc)}.") from exc


def opened_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open an untrusted zip archive and check that all of its members are listed.

    Raises zipfile.BadZipFile, ValueError, OSError or NotImplementedError: the archive is damaged.
    """
    archive = zipfile.ZipFile(file)  # it checks little of the following
    entries = archive.infolist()
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_BYTES))
    tail = file.read(_ZIP_END_BYTES)
    place = tail.rfind(b"PK\5\6")
    here, count, listed, offset, comment = _ZIP_END.unpack_from(tail, place)
    is_zip64 = b"PK\6\7" in tail  # archives of more than 4 GB
    if here != count or not (count == len(entries) or is_zip64):
        raise zipfile.BadZipFile(f"{count} members are declared, but {len(entries)} are listed")
    end = size - len(tail) + place
    if end + _ZIP_END.size + comment != size or not (offset + listed == end or is_zip64):
        raise zipfile.BadZipFile("its list of members is not where it should be")
    if any(not 0 <= entry.header_offset < size for entry in entries):
        raise zipfile.BadZipFile("a member lies outside of it")
    return archive


def read_header(file: BinaryIO) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read the header of an untrusted array.

    Returns:
        The format version, the array's shape, whether its first axis varies fastest, and its type.
    """
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(file)
        elif version in ((2, 0), (3, 0)):  # they differ only in the encoding of field names
            shape, fortran, dtype = npy_format.read_array_header_2_0(file)
        else:
            raise ValueError(f"there is no version {version} of the format")
    except (SyntaxError, tokenize.TokenError, TypeError, OverflowError, RecursionError, MemoryError) as exc:
        # NumPy parses the header as Python, so a damaged header raises some kind of syntax error.
        raise ValueError(f"its header is damaged ({type(exc).__name__}: {words(exc)})") from exc
    if min(shape, default=0) < 0:
        raise ValueError(f"an array cannot have shape {shape}")
    if math.prod(filter(None, shape)) * dtype.itemsize > sys.maxsize:  # NumPy refuses this, even if one length is 0
        raise ValueError(f"an array of shape {shape} and {dtype} is larger than any memory")
    if dtype.itemsize == 0:
        raise ValueError(f"values of {dtype.str!r} have no bytes, so an array of shape {shape} would be empty")
    return version, tuple(shape), fortran, dtype


# Any: a file, or a member of an archive.
def _header(file: Any, name: str) -> ArrayFile:
    """Read the header of an array; the result has the name as its path."""
    try:
        version, shape, fortran_order, dtype = read_header(file)
    except (ValueError, OSError) as exc:
        raise CorruptSource(f"{name} is not a .npy file, or is incomplete: {words(exc)}.") from exc
    if version == (3, 0):
        # Version 3 differs from 2 only in allowing any text in field names, and our arrays have no named fields.
        raise BadOption(f"{name} has version {version} of the format, which only structured arrays need.")
    _check_type(dtype, name)
    if not shape:
        raise BadOption(f"{name} is a single number, without an axis that counts samples.")
    strides = _strides(shape, dtype.itemsize, fortran=fortran_order)
    return ArrayFile(name, file.tell(), tuple(shape), strides, dtype)


def npy_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Read the header of an array whose rows can be read one by one; return its shape and type.

    Raises:
        BadOption: it is another kind of array.
        CorruptSource: this is not the beginning of a .npy file.
    """
    array = _header(file, name)
    if array.strides != _strides(array.shape, array.dtype.itemsize, fortran=False):
        raise BadOption(
            f"{name} is in Fortran order, so its rows are scattered over the file. Save it in C order: "
            "numpy.save(path, numpy.ascontiguousarray(a))."
        )
    return array.shape, array.dtype


def _check_type(dtype: np.dtype[np.generic], name: str) -> None:
    if dtype.hasobject:
        raise BadOption(
            f"{name} holds Python objects, which are pickled: reading them could run any code in the file. "
            "Save arrays of numbers, or use another format for samples of other kinds."
        )
    if dtype.names is not None or dtype.subdtype is not None:
        raise BadOption(
            f"{name} is a structured array, of {', '.join(dtype.names or [str(dtype)])}, which cannot be batched. Map "
            "it yourself and pass its fields as arrays: a = numpy.load(path, mmap_mode='r'); "
            "ArrayDataset({name: a[name] for name in a.dtype.names})."
        )
    if not dtype.isnative:
        raise BadOption(
            f"{name} has another byte order than this machine ({dtype.str}), so every read would have to convert it. "
            "Convert it once: numpy.save(path, a.astype(a.dtype.newbyteorder('=')))."
        )


def _strides(shape: tuple[int, ...], item_bytes: int, *, fortran: bool) -> tuple[int, ...]:
    sizes = shape if fortran else shape[::-1]
    strides = [item_bytes]
    for size in sizes[:-1]:
        strides.append(strides[-1] * size)
    return tuple(strides if fortran else strides[::-1])


def _check_end(array: ArrayFile, size: int, *, is_own: bool = True) -> None:
    """Refuse an incomplete array; if it has a file or member of its own, also refuse one with bytes after it."""
    if array.end > size:
        raise CorruptSource(
            f"{array.path} is truncated: {_text(array)} ends at byte {array.end}, but there are only {size} bytes. The "
            "copy or download was probably interrupted: get the file again."
        )
    if is_own and array.end < size:
        raise CorruptSource(
            f"{array.path} has {size - array.end} bytes too many: {_text(array)} ends at byte {array.end}. Its header "
            "is damaged, or something was appended: get the file again, or save each array in a file of its own."
        )
