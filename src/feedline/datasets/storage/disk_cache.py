"""A size-limited disk cache for pieces of remote blobs, shared by all processes of a machine.

Each piece is a file of `framework/store.py`: every read compares checksums, and a damaged piece is fetched again.
That also makes up for not flushing pieces to the disk, which would take as long as fetching them. The name of a piece
derives from the blob's address, size and tag. So a changed blob has different pieces, readers need no lock, and a file
may be deleted at any time: a process that has it open keeps reading, and later readers fetch it again.

A cache fills with whole pieces, and then stays as it is: other reads fetch just their own bytes. Every sample is needed
once per epoch, so of an epoch's bytes a cache can serve those that it held when the epoch began, and no choice of
pieces serves more. Only pieces that are no longer needed make room: those of blobs that have changed, and those of
other datasets that were not read for an hour.

Workers and ranks often want the same piece at the same time. The first one locks a file beside it and fetches; the
others wait for the lock, so the piece is requested once. If there is no room for it, they find it in the locked file,
which is gone when they have closed it. The lock ends with its process; if that process is only stopped, the others keep
waiting.

One more file in the folder counts bytes, and is locked while a piece is added. A killed process leaves at most an
uncounted file; the next process that looks for room deletes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from feedline.datasets.framework.paths import local_output
from feedline.datasets.framework.store import StoredFile, check_own, stored_bytes, write_stored
from feedline.datasets.storage.addresses import identity_of
from feedline.datasets.storage.blob import Blob
from feedline.errors import BadOption, PerformanceWarning, warn_user
from feedline.system.sizes import bytes_text

PIECE_BYTES = 1 << 21
MARK = ".feedline-shards"
_LOOK_S = 60.0
_LOOK_SHARE = 0.01
"""A full cache is looked through for pieces that are no longer needed at most this often, and for at most this share of
the time. Guesses."""
_FAILED_S = 300.0
"""How long nothing is stored after the disk refused a piece. A guess."""
_FLUSH_BYTES = 1 << 23
"""Bytes read from the cache after which a process adds them to the counts."""
_ABANDONED_S = 3600.0
"""An unfinished file of this age was abandoned."""
_UNUSED_S = 3600.0
"""A piece of another dataset that was not read for this long is not needed any more. A guess."""
_RESERVED = b"r"
"""What is in the lock of a piece that is fetched and counted, but not written yet."""
_PART_OF_NAME = 16
"""The characters of a piece's name that stand for the blob, and of those for its version."""
_NAME = re.compile(r"(?P<begun>\.)?[0-9a-f]{32}-\d+(?(begun)\..*)")
"""Names of pieces and of unfinished files. Other files are the user's, and are left alone."""


class CacheStats(NamedTuple):
    """What a cache folder holds, and what went through it since it was created, in bytes.

    A worker adds what it has read from the disk, or fetched without storing it, every 8 MiB: its last bytes may be
    missing.

    Example:
        >>> CacheStats(held=80, fetched=300, served=100, dropped=220).hit_rate
        0.25
    """

    held: int = 0
    """On the disk now."""
    fetched: int = 0
    """Fetched from the store."""
    served: int = 0
    """Read from the disk instead."""
    dropped: int = 0
    """Deleted to make room, or fetched and not stored because there is none."""

    @property
    def hit_rate(self) -> float:
        """The share of all bytes that did not have to be fetched."""
        return self.served / max(1, self.served + self.fetched)


_COUNTS = struct.Struct("<4q")
"""`CacheStats` in the file beside the pieces."""


def least_limit() -> int:
    """Return the smallest limit that a cache may have: a few pieces."""
    return 4 * PIECE_BYTES


def check_limit(name: str, max_bytes: int) -> None:
    """Check an option that limits a cache. Raises BadOption: it is less than `least_limit()`."""
    if max_bytes < least_limit():
        raise BadOption(
            f"{name}={max_bytes} is less than {bytes_text(least_limit())}: the cache holds pieces of "
            f"{bytes_text(PIECE_BYTES)}. Give more, or no cache."
        )


class DiskCache:
    """A folder with pieces of blobs. Threads and processes may share it.

    Args:
        folder: the cache folder; created if missing. It must not contain other files.
        max_bytes: the size limit on disk.

    Raises:
        BadOption: the folder is not a local one, has other files or belongs to another user, or the limit is less than
            a few pieces.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.folder = local_output("cache", folder)
        self.max_bytes = max_bytes
        check_limit("cache_bytes", max_bytes)
        check_own(self.folder, MARK)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._served = self._uncached = 0
        """Bytes that were not counted yet: read from the disk, and fetched but not stored."""
        self._versions: dict[str, str] = {}
        """The version of each blob that was read here; pieces of other versions are of no use."""
        self._files: list[Sequence[str]] = []
        """The addresses of the datasets that are read here."""
        self._looked_s = self._failed_s = -_FAILED_S
        """When the folder was last looked through, and when a piece could not be stored."""
        self._look_took_s = 0.0

    def own(self, files: Sequence[str]) -> None:
        """Keep the pieces of these addresses, however long ago they were read."""
        if not any(one is files for one in self._files):
            self._files.append(files)

    def pieces_of(self, blob: Blob) -> Path:
        """Return the path of each piece of a blob, cached or not, without its number: append `-` and the number."""
        name, version = _name_of(blob.address), hashlib.blake2b(f"{blob.size}\n{blob.tag}".encode(), digest_size=8)
        self._versions[name] = version.hexdigest()
        return self.folder / f"{name}{version.hexdigest()}"

    def read(self, path: Path, size: int, start: int, stop: int) -> bytes | None:
        """Return some bytes of a piece; None if it is missing or damaged, here or of another size."""
        file = StoredFile.open(path)
        if file is None:
            return None
        try:
            part = file.read(start, stop) if file.size == size else None
        finally:
            file.close()
        if part is not None:
            with contextlib.suppress(OSError):  # deleted meanwhile, or on a disk that cannot be written to
                os.utime(path)  # marks it as recently used
            self._count(served=len(part))
        return part

    def count_uncached(self, size: int) -> None:
        """Count bytes that are fetched and not stored."""
        self._count(uncached=size)

    def _count(self, *, served: int = 0, uncached: int = 0) -> None:
        self._forget_parents()
        self._served, self._uncached = self._served + served, self._uncached + uncached
        if self._served + self._uncached >= _FLUSH_BYTES:
            with contextlib.suppress(OSError), _locked(self.folder / MARK) as mark:
                self._put_counts(mark, self._counts(mark))

    def _forget_parents(self) -> None:
        """In a forked process, drop the counts of the parent, which adds them itself."""
        if self._pid != os.getpid():
            self._pid, self._served, self._uncached = os.getpid(), 0, 0

    def fetched(self, path: Path, size: int, fetch: Callable[[], bytes], *, is_worth: bool) -> bytes | None:
        """Fetch a piece, and cache it if there is room. One caller at a time does; the others wait for its bytes.

        If there is no room, returns None, or fetches the piece if that `is_worth` it.
        """
        lock_path = path.with_name(f".{path.name}.lock")
        with contextlib.ExitStack() as stack:
            lock: int | None = None
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / MARK).touch()  # before any other file
                lock = stack.enter_context(_locked(lock_path))
            except OSError as exc:
                self._warn(exc)
            found = None if lock is None else _handed_over(lock, size)
            if found is not None:
                return found
            found = self.read(path, size, 0, size)
            if found is None:
                room = 0 if lock is None else self._reserved(path, size, lock)
                if room or is_worth:
                    try:
                        found = fetch()  # if it fails, the lock stays, and one of those who wait fetches
                    except BaseException:
                        if lock is not None:
                            os.truncate(lock, 0)
                        self._note(held=-room)
                        raise
                    if not room:
                        self.count_uncached(size)
                    if not (room and self._write(path, found, room)) and lock is not None:
                        _hand_over(lock, found)
            if lock is not None:
                lock_path.unlink(missing_ok=True)
        return found

    def _reserved(self, path: Path, size: int, lock: int) -> int:
        """Return the bytes that were counted for a piece, before it is fetched; 0 if there is no room for it.

        If the process is killed then, the count is too high until the folder is looked through.
        """
        try:
            with _locked(self.folder / MARK) as mark:
                room, counts = stored_bytes(size), self._counts(mark)
                if os.path.lexists(path):  # a damaged piece, which was counted
                    counts = counts._replace(held=counts.held - path.lstat().st_size)
                if counts.held + room > self.max_bytes:
                    return 0
                self._put_counts(mark, counts._replace(held=counts.held + room))
                os.pwrite(lock, _RESERVED, 0)
                return room
        except OSError as exc:
            self._warn(exc)
            return 0

    def _write(self, path: Path, body: bytes, room: int) -> bool:
        """Cache a piece for which there is room. If that fails, warn and return False."""
        try:
            write_stored(path, [body], flush=False)
        except OSError as exc:  # a full disk
            self._note(held=-room, fetched=len(body), dropped=len(body))
            self._warn(exc)
            return False
        self._note(fetched=len(body))
        return True

    def _note(self, *, held: int = 0, fetched: int = 0, dropped: int = 0) -> None:
        with contextlib.suppress(OSError), _locked(self.folder / MARK) as mark:
            counts = self._counts(mark)
            changed = (counts.held + held, counts.fetched + fetched, counts.served, counts.dropped + dropped)
            self._put_counts(mark, CacheStats(*changed))

    def _warn(self, exc: OSError) -> None:
        self._failed_s = time.monotonic()
        warn_user(
            f"{self.folder} cannot be written ({exc.strerror or exc}): shards are read without a cache there. Make "
            "room, or give Remote(cache=...) a folder that can be written to.",
            PerformanceWarning,
        )

    def has_room_for(self, path: Path) -> bool:
        """True if a piece that is missing can probably be cached."""
        now_s, wanted = time.monotonic(), stored_bytes(PIECE_BYTES)
        if now_s < self._failed_s + _FAILED_S:
            return False
        if path.exists():  # damaged
            return True
        try:
            with _opened(self.folder / MARK) as mark:
                counts = _stored_counts(mark)
            if counts is not None and counts.held + wanted <= self.max_bytes:
                return True
            if counts is not None and now_s < self._looked_s + max(_LOOK_S, self._look_took_s / _LOOK_SHARE):
                return False
            self._looked_s = now_s
            with _locked(self.folder / MARK) as mark:
                counts = _stored_counts(mark) or CacheStats()
                held, dropped = self._tidied()
                self._put_counts(mark, counts._replace(held=held, dropped=counts.dropped + dropped))
            self._look_took_s = time.monotonic() - now_s
        except OSError:  # there is no folder yet, or it cannot be written to: `fetched` creates it, or warns
            return True
        return held + wanted <= self.max_bytes

    def _tidied(self) -> tuple[int, int]:
        """Delete pieces that are no longer needed, and the oldest ones if the limit was lowered.

        Returns:
            The bytes that are left, with those that are being fetched, and those that were deleted.
        """
        now_s, own = time.time(), {_name_of(address) for files in self._files for address in files}
        pieces, fetching = _pieces_in(self.folder)
        used = [one for one in pieces if not self._is_useless(one, own, now_s)]
        used.sort(key=lambda one: -one.used_s)
        held = sum(one.size for one in used)
        while held > self.max_bytes:
            held -= used.pop().size
        useless = set(pieces).difference(used)
        for piece in useless:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(piece.path)
        # Pieces that are being fetched have room, but no file yet. The last one of a blob is smaller.
        held = min(self.max_bytes, held + fetching * stored_bytes(PIECE_BYTES))
        return held, sum(one.size for one in useless)

    def _is_useless(self, piece: _Piece, own: set[str], now_s: float) -> bool:
        """True if the piece's blob has changed, or its dataset is no longer used."""
        name = os.path.basename(piece.path)
        blob, version = name[:_PART_OF_NAME], name[_PART_OF_NAME : 2 * _PART_OF_NAME]
        if blob in self._versions:
            return self._versions[blob] != version
        return blob not in own and piece.used_s < now_s - _UNUSED_S

    def stats(self) -> CacheStats:
        """Return what the folder holds, and what went through it."""
        try:
            with _locked(self.folder / MARK) as mark:
                self._put_counts(mark, self._counts(mark))
                return self._counts(mark)
        except OSError:  # there is no folder yet, or it cannot be written to
            return CacheStats()

    def _counts(self, mark: int) -> CacheStats:
        stored = _stored_counts(mark)
        return CacheStats(held=sum(one.size for one in _pieces_in(self.folder)[0])) if stored is None else stored

    def _put_counts(self, mark: int, counts: CacheStats) -> None:
        self._forget_parents()
        served, self._served = self._served, 0
        uncached, self._uncached = self._uncached, 0
        held, fetched, before, dropped = counts
        os.pwrite(mark, _COUNTS.pack(held, fetched + uncached, before + served, dropped + uncached), 0)

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r}, max_bytes={self.max_bytes})"


class _Piece(NamedTuple):
    path: str
    size: int
    used_s: float
    """When it was last read."""


def _name_of(address: str) -> str:
    """Return what the names of a blob's pieces begin with, whatever its version."""
    return hashlib.blake2b(identity_of(address).encode(), digest_size=_PART_OF_NAME // 2).hexdigest()


def _pieces_in(folder: Path) -> tuple[list[_Piece], int]:
    """Return the pieces in a folder, and for how many others there is room. Deletes files that were abandoned."""
    found, fetching = list[_Piece](), set[str]()
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                name, status = _NAME.fullmatch(entry.name), entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    continue
                if name and not name["begun"]:
                    found.append(_Piece(entry.path, status.st_size, status.st_mtime))
                elif name and status.st_mtime < time.time() - _ABANDONED_S:
                    os.unlink(entry.path)
                elif name and entry.name.endswith(".lock") and status.st_size == len(_RESERVED):
                    fetching.add(entry.name[1:].removesuffix(".lock"))
    return found, len(fetching.difference(os.path.basename(one.path) for one in found))


def _stored_counts(mark: int) -> CacheStats | None:
    """Return what the file beside the pieces says; None in a new folder, or if its first process was killed."""
    data = os.pread(mark, _COUNTS.size, 0)
    return CacheStats(*_COUNTS.unpack(data)) if len(data) == _COUNTS.size else None


@contextlib.contextmanager
def _opened(path: Path, mode: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file of the cache; never a link, and without waiting for the other end of a pipe."""
    file = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    import fcntl  # not available on Windows, where the rest of this file can be imported

    with _opened(path, os.O_RDWR | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open, too


def _hand_over(lock: int, body: bytes) -> None:
    """Leave a piece to those who wait for a lock. If the disk is full, they fetch it themselves."""
    with contextlib.suppress(OSError):
        os.truncate(lock, 0)
        os.pwrite(lock, body + zlib.crc32(body).to_bytes(4, "little"), 0)


def _handed_over(lock: int, size: int) -> bytes | None:
    """Return the piece that another process has left; None if it was cached, or not fetched."""
    body, checksum = os.pread(lock, size, 0), os.pread(lock, 4, size)
    return body if len(body) == size and zlib.crc32(body).to_bytes(4, "little") == checksum else None
