"""A size-limited disk cache for pieces of remote blobs, shared by all processes of a machine.

Each piece is a file of `framework/store.py`: every read compares checksums, and a damaged piece is fetched again.
That also makes up for not flushing pieces to the disk, which would take as long as fetching them. The name of a piece
derives from the blob's address, size and tag. So a changed blob has different pieces, readers need no lock, and a file
may be deleted at any time: a process that has it open keeps reading, and later readers fetch it again.

Workers and ranks often want the same piece at the same time. The first one locks a file beside it and fetches; the
others wait for the lock, so the piece is requested once. The lock ends with its process; if that process is only
stopped, the others keep waiting.

When there are too many bytes, what is needed latest goes first (`foresight.py`). A new piece that is needed later than
all others is not stored at all. Pieces of other datasets stay as long as somebody uses them.

One more file in the folder counts bytes, and is locked while a piece is added. A killed process leaves at most an
uncounted file; the next process that deletes pieces deletes it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from feedline.datasets.framework.paths import local_output
from feedline.datasets.framework.store import StoredFile, check_own, stored_bytes, write_stored
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.cache_pieces import Pieces, place_of, victims_of
from feedline.datasets.storage.foresight import Foresight, RandomAccess, name_of
from feedline.errors import BadOption, PerformanceWarning, warn_user
from feedline.system.process import lock_of_process
from feedline.system.sizes import bytes_text

PIECE_BYTES = 1 << 21
MARK = ".feedline-shards"
_SLACK = 0.01
"""The share of the limit to free beyond what is needed, so that not every piece deletes others. A guess."""
_SCAN_S = 10.0
_SCAN_SHARE = 0.01
"""How long the result of a scan is used, where every piece could need one: so long, and until this share of the time
was spent on scans. Guesses."""
_FULL_S = 300.0
"""How long a cache that was found to be full is not looked at again. A guess."""
_FLUSH_BYTES = 1 << 23
"""Bytes read from the cache after which a process adds them to the counts."""
_reserving = lock_of_process()
"""Held while room is looked for."""


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
    """Deleted to make room, or fetched and not stored, because everything else is needed sooner or there is no room."""

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
            f"{name}={max_bytes} is less than {bytes_text(least_limit())}: pieces of shards have "
            f"{bytes_text(PIECE_BYTES)}, and would be deleted before they are used again. Give more, or no cache."
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
        """Begin with nothing: each process counts its own bytes, and reserves room for itself."""
        self._pid = os.getpid()
        self._served = self._uncached = 0
        """Bytes that were not counted yet: read from the disk, and fetched but not stored."""
        self._pieces: Pieces | None = None
        """What was in the folder a short while ago."""
        self._versions: dict[str, str] = {}
        """The version of each blob that was read here; pieces of other versions are of no use."""
        self._reserved = 0
        """Pieces that this process is fetching because there is room for them."""
        self._full_until_s = 0.0
        """Until when nothing is stored that would need others to go."""
        self._random_access = RandomAccess()
        self._last = threading.local()
        """The piece that each thread read last: the reads of a batch are often close together."""

    def random_access(self, files: Sequence[str]) -> RandomAccess:
        """Return what is known about files that are read at random: the same object for the same files."""
        if self._random_access.files is not files:
            self._random_access = RandomAccess(files)
        return self._random_access

    def path_of(self, blob: Blob, number: int) -> Path:
        """Return the path of a piece, whether or not it is cached."""
        name, version = name_of(blob.address), hashlib.blake2b(f"{blob.size}\n{blob.tag}".encode(), digest_size=8)
        self._versions[name] = version.hexdigest()
        return self.folder / f"{name}{version.hexdigest()}-{number}"

    def read(self, path: Path, size: int) -> bytes | None:
        """Return the bytes of a piece; None if it is missing or damaged."""
        return self.read_part(path, size, 0, size)

    def read_part(self, path: Path, size: int, start: int, stop: int) -> bytes | None:
        """Return some bytes of a piece; None if it is missing or damaged, here or of another size."""
        file = StoredFile.open(path)
        if file is None:
            return None
        try:
            part = file.read(start, stop) if file.size == size else None
        finally:
            file.close()
        if part is not None:
            self._count_served(path, len(part))
        return part

    def _count_served(self, path: Path, size: int) -> None:
        with contextlib.suppress(OSError):  # deleted meanwhile, or on a disk that cannot be written to
            os.utime(path)  # marks it as recently used
        self._served += size
        self._flush_counts()

    def count_uncached(self, size: int) -> None:
        """Count bytes that are fetched and not stored."""
        self._uncached += size
        self._flush_counts()

    def _flush_counts(self) -> None:
        self._leave_to_parent()
        if self._served + self._uncached >= _FLUSH_BYTES:
            with contextlib.suppress(OSError), _locked(self.folder / MARK) as mark:
                self._put_counts(mark, self._counts(mark))

    def last(self, path: Path) -> bytes | None:
        """Return a piece if this thread has read it last."""
        kept: tuple[Path, bytes] | None = getattr(self._last, "piece", None)
        return kept[1] if kept is not None and kept[0] == path else None

    def keep_last(self, path: Path, body: bytes) -> None:
        """Keep the piece that this thread has just read."""
        self._last.piece = path, body

    def fetched(self, path: Path, size: int, fetch: Callable[[], bytes], foresight: Foresight) -> bytes:
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
                self.write(path, found, foresight)
        return found

    def write(self, path: Path, body: bytes, foresight: Foresight) -> None:
        """Cache a piece. If that fails, only warn."""
        self._leave_to_parent()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / MARK) as mark:
                size = stored_bytes(len(body))
                before = path.lstat().st_size if os.path.lexists(path) else 0  # another process was quicker
                counts = self._counts(mark)
                counts = counts._replace(held=counts.held + size - before, fetched=counts.fetched + len(body))
                is_stored = True
                if counts.held > self.max_bytes:
                    counts, is_stored = self._make_room(counts, path, size, foresight)
                # Before the piece: a process killed in between leaves too high a count, which the next scan corrects.
                self._put_counts(mark, counts)
                if is_stored:
                    try:
                        write_stored(path, [body], flush=False)
                    except OSError:  # a full disk
                        self._put_counts(mark, counts._replace(held=counts.held - size + before))
                        raise
                    if self._pieces is not None:
                        self._pieces.add(str(path), size)
        except OSError as exc:
            self._full_until_s = time.monotonic() + _FULL_S
            warn_user(
                f"{self.folder} cannot be written ({exc.strerror or exc}): shards are read without a cache there. Make "
                "room, or give Remote(cache=...) a folder that can be written to.",
                PerformanceWarning,
            )

    @contextlib.contextmanager
    def reserved(self, path: Path, foresight: Foresight) -> Iterator[bool]:
        """Reserve room for a piece while it is fetched. Yields False if another would have to go that is of use."""
        self._leave_to_parent()
        with _reserving:
            has_room = path.exists() or self._has_room(path, foresight)  # one that is there is damaged
            self._reserved += has_room
        try:
            yield has_room
        finally:
            with _reserving:
                self._reserved -= has_room

    def _has_room(self, path: Path, foresight: Foresight) -> bool:
        if time.monotonic() < self._full_until_s:
            return False
        piece = stored_bytes(PIECE_BYTES)
        wanted = piece * (self._reserved + 1)
        try:
            with _opened(self.folder / MARK) as mark:
                stored = _stored_counts(mark)
            if stored is not None and stored.held + wanted <= self.max_bytes:
                return True
            with _locked(self.folder / MARK) as mark:
                last, counts = self._pieces, self._counts(mark)
                pieces = self._scanned(anew=False)
                if pieces is not last:  # corrects the count, if a process was killed
                    counts = counts._replace(held=self._trimmed(pieces))
                    self._put_counts(mark, counts)
                useless = int(pieces.sizes[pieces.are_useless(foresight, self._versions)].sum())
                is_needed = foresight.after(place_of(path.name, foresight)) < math.inf
        except OSError:  # there is no folder yet, or it cannot be written to: `write` creates it, or warns
            return True
        left = self.max_bytes - counts.held + useless if is_needed else 0
        if left < piece:
            self._full_until_s = time.monotonic() + max(_FULL_S, pieces.took_s / _SCAN_SHARE)
        return left >= wanted

    def _trimmed(self, pieces: Pieces) -> int:
        """Delete the pieces used least recently if the limit was lowered; return the bytes that are left."""
        held = int(pieces.sizes.sum())
        victims, _ = victims_of(-pieces.used_s, pieces.sizes, -math.inf, held - self.max_bytes)
        return held - pieces.delete(victims)

    def _leave_to_parent(self) -> None:
        """Drop what a forked process has inherited: counts, reservations, and what its parent found in the folder."""
        if self._pid != os.getpid():
            with _reserving:
                if self._pid != os.getpid():
                    self._served = self._uncached = self._reserved = 0
                    self._pieces = None
                    self._pid = os.getpid()

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
        return CacheStats(held=int(self._scanned().sizes.sum())) if stored is None else stored

    def _put_counts(self, mark: int, counts: CacheStats) -> None:
        served, self._served = self._served, 0
        uncached, self._uncached = self._uncached, 0
        counts = CacheStats(counts.held, counts.fetched + uncached, counts.served + served, counts.dropped + uncached)
        os.pwrite(mark, _COUNTS.pack(*counts), 0)

    def _scanned(self, *, anew: bool = True) -> Pieces:
        """Return the pieces in the folder. If not `anew`, a recent result will do."""
        last = self._pieces
        if anew or last is None or time.monotonic() - last.at_s >= max(_SCAN_S, last.took_s / _SCAN_SHARE):
            self._pieces = Pieces(self.folder)
            return self._pieces
        return last

    def _make_room(self, counts: CacheStats, path: Path, size: int, foresight: Foresight) -> tuple[CacheStats, bool]:
        """Delete pieces until a new one fits. Return the counts, and whether to store the new piece."""
        last = self._pieces
        pieces = self._scanned(anew=False)
        pieces.leave_out(pieces.at(path))  # it is replaced
        # Other processes have changed what an old scan found. A new one corrects the count.
        held = counts.held if pieces is last else int(pieces.sizes.sum()) + size
        slack, new = int(self.max_bytes * _SLACK), foresight.after(place_of(path.name, foresight))
        fits, dropped = True, 0
        while fits and held > self.max_bytes:  # again, if other processes have deleted these pieces already
            times = pieces.times(foresight, self._versions)
            victims, fits = victims_of(times, pieces.sizes, new, held - self.max_bytes, slack)
            freed = pieces.delete(victims) + (0 if fits else size)
            held, dropped = held - freed, dropped + freed
        return counts._replace(held=held, dropped=counts.dropped + dropped), fits

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r}, max_bytes={self.max_bytes})"


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
