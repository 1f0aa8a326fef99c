"""Pieces of remote blobs on a disk of this machine, which all its processes share, with a bound on their size.

A piece is a file of its own, written under another name and then renamed, with a checksum behind its bytes. Its name
follows from what it is a piece of: address, size and tag. So a blob that changed has other pieces, whoever reads needs
no lock, and a file may be deleted at any time: who has it open reads on, who comes later fetches it again.

Workers and ranks often want the same piece at the same time. Who fetches it holds a lock on a file beside it, and the
others wait for that: it is asked for once. The lock ends with its process; should that only be stopped, they wait on.

The folder has one more file, which is locked while a piece is added. It holds how many bytes there are. When they are
too many, those that were used least recently are deleted. A process that is killed leaves at most a file that counts
for nothing, which the next one that has to delete something deletes as well.
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
"""Of the bound, what is left when pieces are deleted: not to go through the folder for every piece. A guess."""
_ABANDONED_S = 3600.0
"""How old a file is that somebody began to write, and will not end."""
_COUNT = struct.Struct("<q")
_NAME = re.compile(r"(?P<begun>\.)?[0-9a-f]{32}-\d+(?(begun)\..*)")
"""Of pieces, and of files that somebody began to write. Others were put there by the user, and are left alone."""


class DiskCache:
    """A folder with pieces of blobs. Threads and processes may share it.

    Args:
        folder: where it is; made if it is not there. Nothing of others may be in it.
        max_bytes: how much it may take on the disk.

    Raises:
        BadOption: the folder has other files, or is another user's; or the bound is less than a few pieces.
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
        """Return where a piece of a blob is, if it is there."""
        about = f"{identity_of(blob.address)}\n{blob.size}\n{blob.tag}".encode()
        return self.folder / f"{hashlib.blake2b(about, digest_size=16).hexdigest()}-{number}"

    def read(self, path: Path, size: int) -> bytes | None:
        """Return the bytes of a piece; None if it is not there, or not whole."""
        try:
            content = path.read_bytes()
        except OSError:  # not there
            return None
        with contextlib.suppress(OSError):  # deleted meanwhile, or on a disk that cannot be written to
            os.utime(path)  # when it was used
        body = content[:-4]
        if len(body) != size or content[-4:] != struct.pack("<I", zlib.crc32(body)):
            return None  # written before a power failure
        return body

    def fetched(self, path: Path, size: int, fetch: Callable[[], bytes]) -> bytes:
        """Return the bytes of a piece; of those who find that it is not there, one at a time fetches and keeps it."""
        found = self.read(path, size)
        if found is not None:
            return found
        with contextlib.ExitStack() as stack:
            lock = path.with_name(f".{path.name}.lock")
            with contextlib.suppress(OSError):  # a folder that cannot be written to, which `write` tells
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / MARK).touch()  # before any other file
                stack.enter_context(_locked(lock))
                stack.callback(lock.unlink, missing_ok=True)
            found = self.read(path, size)  # another was quicker
            if found is None:
                found = fetch()
                self.write(path, found)
        return found

    def write(self, path: Path, body: bytes) -> None:
        """Keep a piece. If that cannot be done, a warning says so, and that is all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / MARK) as mark:
                size = len(body) + 4
                before = path.stat().st_size if path.exists() else 0  # another process was quicker
                total = self._counted(mark) + size - before
                if total > self.max_bytes:
                    total = size + self._delete_least_recent(path, self.max_bytes * _KEPT - size)
                # Before the piece: who is killed in between leaves a count that is too high, and so is made anew soon.
                os.pwrite(mark, _COUNT.pack(total), 0)
                write_whole(path, body, struct.pack("<I", zlib.crc32(body)))
        except OSError as exc:
            warn_user(
                f"{self.folder} cannot be written ({exc.strerror or exc}): shards are read without a cache there. Make "
                "room, or give shard_cache= a folder that can be written to.",
                PerformanceWarning,
            )

    def _counted(self, mark: int) -> int:
        told = os.pread(mark, _COUNT.size, 0)
        if len(told) < _COUNT.size:  # a new folder, or one whose first process was killed
            return sum(size for _, size, _ in self._pieces())
        return int(_COUNT.unpack(told)[0])

    def _pieces(self) -> list[tuple[int, int, str]]:
        """Return when each piece was used, its size and its path; delete what nobody will end."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    name, facts = _NAME.fullmatch(entry.name), entry.stat()
                    if name and not name["begun"]:
                        found.append((facts.st_mtime_ns, facts.st_size, entry.path))
                    elif name and facts.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(entry.path)
        return found

    def _delete_least_recent(self, newest: Path, most: float) -> int:
        """Delete pieces until so many bytes are left, besides those of `newest`; returns how many."""
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
    import fcntl  # there is none on Windows, where the rest of this file can be imported

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not do it: a process forked meanwhile has it open, too
    finally:
        os.close(file)


class CachedBlob(Blob):
    """A blob whose bytes are read from a disk where that has them, in pieces. Closes the blob with itself."""

    def __init__(self, blob: Blob, cache: DiskCache) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._last: tuple[int, bytes] = (-1, b"")
        """The piece that was read last: reads of a batch are often close together."""

    def read(self, start: int, stop: int) -> bytes:
        parts = []
        for number in range(start // PIECE_BYTES, -(-stop // PIECE_BYTES)):
            first = number * PIECE_BYTES
            parts.append(self._piece(number)[max(0, start - first) : stop - first])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, number: int) -> bytes:
        known, piece = self._last  # at once: other threads read, too
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
