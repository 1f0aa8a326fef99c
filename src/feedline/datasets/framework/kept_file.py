"""Files that feedline derives and keeps: each is as it was written, or counts as missing and is made again.

    content | CRC-32 of each block of the content, 4 bytes each | magic, size of content, CRC-32 of the rest

A file is written under another name, flushed to the disk and renamed: after a crash at any moment, the name refers to a
complete file or to none. Reading compares the checksums of the blocks that it touches, each time, so damage on the disk
is detected whenever it happens, and a few bytes of a large file cost one block. The magic is also the version.

Readers never follow a symbolic link or wait for a pipe: anything but a regular file counts as missing.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from feedline.system.files import replacing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BLOCK_BYTES = 1 << 14
_MAGIC = b"FDLKEPT1"
_FOOTER = struct.Struct("<8sQI")
_TAIL_BYTES = 1 << 12
"""Bytes to read from the end at first: they include the checksums of 16 MB."""
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def keep(path: Path, pieces: Iterable[ReadableBuffer], *, flush: bool = True) -> None:
    """Write a file that `KeptFile` opens. Raises OSError."""
    table, size, checksum = bytearray(), 0, 0
    with replacing(path, flush=flush) as file:
        for piece in pieces:
            file.write(piece)
            view = memoryview(piece).cast("B")
            while len(view):
                part = view[: BLOCK_BYTES - size % BLOCK_BYTES]
                checksum, size, view = zlib.crc32(part, checksum), size + len(part), view[len(part) :]
                if size % BLOCK_BYTES == 0:
                    table += checksum.to_bytes(4, sys.byteorder)
                    checksum = 0
        if size % BLOCK_BYTES:
            table += checksum.to_bytes(4, sys.byteorder)
        file.write(table)
        file.write(_footer(size, table))


def kept_bytes(size: int) -> int:
    """Return the bytes of a kept file with so many bytes of content."""
    return size + 4 * -(-size // BLOCK_BYTES) + _FOOTER.size


def _footer(size: int, table: ReadableBuffer) -> bytes:
    return _FOOTER.pack(_MAGIC, size, zlib.crc32(table, zlib.crc32(_MAGIC + size.to_bytes(8, "little"))))


class KeptFile:
    """An open file that `keep` wrote. Threads may read it at the same time."""

    def __init__(self, descriptor: int, size: int, table: bytes) -> None:
        self.descriptor = descriptor
        self.size = size
        """Bytes of the content."""
        self.tag = f"{zlib.crc32(table):08x}"
        """Changes with the content."""
        self._sums = memoryview(table).cast("I")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> KeptFile | None:
        """Open a file; None if there is none that `keep` completed. The content may be damaged."""
        try:
            descriptor = os.open(path, _OPEN)
        except OSError:
            return None
        found = None
        try:
            found = cls._of(descriptor)
        except OSError:
            pass  # a disk that cannot read it
        finally:
            if found is None:
                os.close(descriptor)
        return found

    @classmethod
    def _of(cls, descriptor: int) -> KeptFile | None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < _FOOTER.size:
            return None
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, status.st_size - _TAIL_BYTES))
        footer = tail[-_FOOTER.size :]
        magic, size, _ = _FOOTER.unpack(footer)
        if magic != _MAGIC or kept_bytes(size) != status.st_size:
            return None
        start, stop = size - status.st_size, -_FOOTER.size
        table = tail[start:stop] if -start <= len(tail) else os.pread(descriptor, stop - start, size)
        return cls(descriptor, size, table) if _footer(size, table) == footer else None

    def read(self, start: int, stop: int) -> bytes | None:
        """Return some bytes of the content; None if they are damaged."""
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)
        try:
            data = os.pread(self.descriptor, end - begin, begin)
            while 0 < len(data) < end - begin:  # a read is at most 2 GB
                more = os.pread(self.descriptor, end - begin - len(data), begin + len(data))
                if not more:
                    break
                data += more
        except OSError:
            return None
        if len(data) != end - begin or not self._is_intact(data, first, last):
            return None
        return data[start - begin : stop - begin]

    def is_intact(self, content: ReadableBuffer) -> bool:
        """True if these bytes, perhaps mapped from the file, are its content."""
        view = memoryview(content)
        return view.nbytes == self.size and self._is_intact(view, 0, len(self._sums))

    def _is_intact(self, content: bytes | memoryview, first: int, last: int) -> bool:
        view, sums = memoryview(content), self._sums[first:last].tolist()
        return all(
            zlib.crc32(view[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES]) == one for place, one in enumerate(sums)
        )

    def close(self) -> None:
        """Close the file. May be called twice, but not while another thread reads."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def read_kept(path: str | os.PathLike[str]) -> bytes | None:
    """Return the content of a kept file; None if there is none, or it is damaged."""
    file = KeptFile.open(path)
    if file is None:
        return None
    try:
        return file.read(0, file.size)
    finally:
        file.close()
