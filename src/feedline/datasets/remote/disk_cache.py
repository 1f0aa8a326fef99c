"""A size-limited disk cache for pieces of remote blobs, shared by all processes of a machine.

Each piece is a file, written under a temporary name and then renamed, with a checksum after its bytes. Its name derives
from the blob's address, size and tag. So a changed blob has different pieces, readers need no lock, and a file may be
deleted at any time: a process that has it open keeps reading, and later readers fetch it again.

Workers and ranks often want the same piece at the same time. The first one locks a file beside it and fetches; the
others wait for the lock, so the piece is requested once. The lock ends with its process; if that process is only
stopped, the others keep waiting.

One more file in the folder holds the total size in bytes and is locked while a piece is added. When the total exceeds
the limit, the least recently used pieces are deleted. A killed process leaves at most an uncounted file; the next
process that deletes pieces deletes it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from feedline.datasets.cache_file import check_own, write_whole
from feedline.datasets.remote.blob import Blob
from feedline.errors import BadOption, PerformanceWarning, warn_user
from feedline.types.shown import identity_of
from feedline.types.sizes import bytes_text

PIECE_BYTES = 1 << 22
MARK = ".feedline-shards"
_KEPT = 0.9
"""Fraction of the limit that remains after a cleanup, so that not every piece triggers a scan. A guess."""
_ABANDONED_S = 3600.0
"""An unfinished file of this age was abandoned."""
_COUNT = struct.Struct("<q")
_NAME = re.compile(r"(?P<begun>\.)?[0-9a-f]{32}-\d+(?(begun)\..*)")
"""Names of pieces and of unfinished files. Other files are the user's, and are left alone."""


class DiskCache:
    """A folder with pieces of blobs. Threads and processes may share it.

    Args:
        folder: the cache folder; created if missing. It must not contain other files.
        max_bytes: the size limit on disk.

    Raises:
        BadOption: the folder has other files or belongs to another user, or the limit is less than a few pieces.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.folder = Path(folder).absolute()
        self.max_bytes = max_bytes
        if max_bytes < 4 * PIECE_BYTES:
            raise BadOption(
                f"shard_cache_bytes={max_bytes} is less than {bytes_text(4 * PIECE_BYTES)}: pieces of shards have "
                f"{bytes_text(PIECE_BYTES)}, and would be deleted before they are used again. Give more, or no cache."
            )
        check_own(self.folder, MARK)

    def path_of(self, blob: Blob, number: int) -> Path:
        """Return the path of a piece, whether or not it is cached."""
        about = f"{identity_of(blob.address)}\n{blob.size}\n{blob.tag}".encode()
        return self.folder / f"{hashlib.blake2b(about, digest_size=16).hexdigest()}-{number}"

    def read(self, path: Path, size: int) -> bytes | None:
        """Return the bytes of a piece; None if it is missing or incomplete."""
        try:
            content = path.read_bytes()
        except OSError:  # not there
            return None
        with contextlib.suppress(OSError):  # deleted meanwhile, or on a disk that cannot be written to
            os.utime(path)  # marks it as recently used
        body = content[:-4]
        if len(body) != size or content[-4:] != struct.pack("<I", zlib.crc32(body)):
            return None  # written before a power failure
        return body

    def fetched(self, path: Path, size: int, fetch: Callable[[], bytes]) -> bytes:
        """Return the bytes of a piece; if it is missing, one caller at a time fetches and caches it."""
        found = self.read(path, size)
        if found is not None:
            return found
        with contextlib.ExitStack() as stack:
            lock = path.with_name(f".{path.name}.lock")
            with contextlib.suppress(OSError):  # the folder is not writable; `write` reports it
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / MARK).touch()  # before any other file
                stack.enter_context(_locked(lock))
                stack.callback(lock.unlink, missing_ok=True)
            found = self.read(path, size)  # another process may have been quicker
            if found is None:
                found = fetch()
                self.write(path, found)
        return found

    def write(self, path: Path, body: bytes) -> None:
        """Cache a piece. If that fails, only warn."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / MARK) as mark:
                size = len(body) + 4
                before = path.stat().st_size if path.exists() else 0  # another process was quicker
                total = self._counted(mark) + size - before
                if total > self.max_bytes:
                    total = size + self._delete_least_recent(path, self.max_bytes * _KEPT - size)
                # Before the piece: a process killed in between leaves too high a total, which the next cleanup
                # corrects.
                os.pwrite(mark, _COUNT.pack(total), 0)
                write_whole(path, body, struct.pack("<I", zlib.crc32(body)))
        except OSError as exc:
            warn_user(
                f"{self.folder} cannot be written ({exc.strerror or exc}): shards are read without a cache there. Make "
                "room, or give shard_cache= a folder that can be written to.",
                PerformanceWarning,
            )

    def _counted(self, mark: int) -> int:
        data = os.pread(mark, _COUNT.size, 0)
        if len(data) < _COUNT.size:  # a new folder, or one whose first process was killed
            return sum(size for _, size, _ in self._pieces())
        return int(_COUNT.unpack(data)[0])

    def _pieces(self) -> list[tuple[int, int, str]]:
        """Return the last use, size and path of each piece; delete abandoned files."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    name, status = _NAME.fullmatch(entry.name), entry.stat()
                    if name and not name["begun"]:
                        found.append((status.st_mtime_ns, status.st_size, entry.path))
                    elif name and status.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(entry.path)
        return found

    def _delete_least_recent(self, newest: Path, most: float) -> int:
        """Delete pieces until at most `most` bytes remain besides `newest`; return how many bytes remain."""
        pieces = sorted(piece for piece in self._pieces() if piece[2] != str(newest))
        total = sum(size for _, size, _ in pieces)
        for _, size, path in pieces:
            if total <= most:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
        return total

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r}, max_bytes={self.max_bytes})"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    import fcntl  # not available on Windows, where the rest of this file can be imported

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open, too
    finally:
        os.close(file)


class CachedBlob(Blob):
    """A blob that reads through a disk cache, piece by piece. Closing it closes the underlying blob."""

    def __init__(self, blob: Blob, cache: DiskCache) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._last: tuple[int, bytes] = (-1, b"")
        """The piece that was read last: the reads of a batch are often close together."""

    def read(self, start: int, stop: int) -> bytes:
        parts = []
        for number in range(start // PIECE_BYTES, -(-stop // PIECE_BYTES)):
            first = number * PIECE_BYTES
            parts.append(self._piece(number)[max(0, start - first) : stop - first])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, number: int) -> bytes:
        known, piece = self._last  # one atomic read: other threads read, too
        if known == number:
            return piece
        first = number * PIECE_BYTES
        size = min(PIECE_BYTES, self.size - first)
        path = self._cache.path_of(self, number)
        found = self._cache.fetched(path, size, lambda: self._blob.read(first, first + size))
        self._last = number, found
        return found

    def check(self) -> None:
        self._blob.check()

    def close(self) -> None:
        self._last = -1, b""
        self._blob.close()
