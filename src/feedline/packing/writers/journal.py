"""A file that can be put back to what it was at a point, also after its process was killed.

Before bytes that were there at that point are overwritten, the old ones are saved in a journal. To go back, they are
written again, and the file is cut to its old length. HDF5 needs this: it overwrites its tables all the time, and a
file that was not closed is lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

_PAGE = 4096
_ENTRY = struct.Struct("<QII")
"""Place, number of bytes, checksum; the bytes follow."""


class JournaledFile:
    """A file object that h5py takes, whose changes since the last `mark` can be taken back.

    Args:
        path: of the file; it is made if there is none.
        journal: of the journal for what is overwritten from now on.
    """

    def __init__(self, path: Path, journal: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._place = 0
        self._marked_bytes = os.fstat(self._file).st_size
        self._journal_path = journal
        self._journal: int | None = None
        self._saved: set[int] = set()
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error of an earlier call, such as that of a full disk.

        h5py calls the methods here from C code that does not survive an exception. So none is raised there: after the
        first error nothing is written any more, and it is raised here.
        """
        if self._error is not None:
            raise self._error

    def read(self, size: int) -> bytes:
        """Read bytes; h5py knows a file object by this."""
        data = bytearray(size)
        return bytes(data[: self.readinto(memoryview(data))])

    def readinto(self, buffer: memoryview) -> int:
        try:
            count = os.preadv(self._file, [buffer], self._place)
        except OSError as exc:
            self._error = self._error or exc
            count = 0
        self._place += count
        return count

    def write(self, data: memoryview) -> int:
        size = len(data)
        if self._error is None:
            try:
                self._write(data, size)
            except OSError as exc:
                self._error = exc
        self._place += size
        return size

    def _write(self, data: memoryview, size: int) -> None:
        if self._place < self._marked_bytes:
            self._save(self._place, min(self._place + size, self._marked_bytes))
        written = 0
        while written < size:
            written += os.pwrite(self._file, data[written:], self._place + written)

    def _save(self, start: int, stop: int) -> None:
        """Save the pages of a range, which are still as they were."""
        entries = b""
        for page in range(start // _PAGE, -(-stop // _PAGE)):
            if page not in self._saved:
                old = os.pread(self._file, min(_PAGE, self._marked_bytes - page * _PAGE), page * _PAGE)
                entries += _ENTRY.pack(page * _PAGE, len(old), zlib.crc32(old)) + old
                self._saved.add(page)
        if not entries:
            return
        if self._journal is None:
            self._journal = os.open(self._journal_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        written = 0
        while written < len(entries):
            written += os.write(self._journal, entries[written:])
        # They have to be on the disk before the bytes that they save are changed there, in case the machine stops.
        os.fdatasync(self._journal)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: os.fstat(self._file).st_size}[whence]
        self._place = base + place
        return self._place

    def tell(self) -> int:
        return self._place

    def truncate(self, size: int | None = None) -> int:
        size = self._place if size is None else size
        if self._error is None:
            try:
                if size < self._marked_bytes:
                    self._save(size, self._marked_bytes)
                os.ftruncate(self._file, size)
            except OSError as exc:
                self._error = exc
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def sync(self) -> int:
        """Put everything on the disk, and return the length of the file."""
        self.check()
        os.fsync(self._file)
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file and the journal; the journal stays."""
        for handle in (self._file, self._journal):
            if handle is not None and handle >= 0:
                os.close(handle)
        self._file, self._journal = -1, None


def roll_back(path: Path, journal: Path, size: int) -> None:
    """Put a file back to what it was when it had `size` bytes and the journal was begun. May be interrupted, repeated.

    The end of a journal may be cut off: an entry is complete before what it saves is touched.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        entries = journal.read_bytes() if journal.exists() else b""
        place = 0
        while place + _ENTRY.size <= len(entries):
            start, length, checksum = _ENTRY.unpack_from(entries, place)
            old = entries[place + _ENTRY.size : place + _ENTRY.size + length]
            if len(old) < length or zlib.crc32(old) != checksum:
                break
            os.pwrite(handle, old, start)
            place += _ENTRY.size + length
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)
