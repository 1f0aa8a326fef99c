"""A size-limited disk cache for pieces of remote blobs, shared by all processes of a machine.

Each piece is a file, written under a temporary name and then renamed, with a checksum after its bytes. Its name derives
from the blob's address, size and tag. So a changed blob has different pieces, readers need no lock, and a file may be
deleted at any time: a process that has it open keeps reading, and later readers fetch it again.

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
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.cache_file import check_own, write_whole
from feedline.datasets.paths import local_output
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.foresight import NAME_LENGTH, Foresight, name_of
from feedline.errors import BadOption, PerformanceWarning, warn_user
from feedline.types.sizes import bytes_text

PIECE_BYTES = 1 << 21
MARK = ".feedline-shards"
_SLACK = 0.01
"""The share of the limit to free beyond what is needed, so that not every piece deletes others. A guess."""
_ABANDONED_S = 3600.0
"""An unfinished file of this age was abandoned."""
_UNUSED_S = 3600.0
"""A piece of another dataset that was not read for this long is not needed any more. A guess."""
_SCAN_S = 10.0
_SCAN_SHARE = 0.01
"""How long the result of a scan is used, where every piece could need one: so long, and until this share of the time
was spent on scans. Guesses."""
_FLUSH_BYTES = 1 << 26
"""Bytes read from the cache after which a process adds them to the counts."""
_NAME = re.compile(r"(?P<begun>\.)?[0-9a-f]{32}-\d+(?(begun)\..*)")
"""Names of pieces and of unfinished files. Other files are the user's, and are left alone."""


class CacheStats(NamedTuple):
    """What a cache folder holds, and what went through it since it was created, in bytes.

    A worker adds what it has read from the disk, or fetched without storing it, every 64 MiB: its last bytes may be
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
    """Deleted to make room, or fetched and not stored because everything else is needed sooner."""

    @property
    def hit_rate(self) -> float:
        """The share of all bytes that did not have to be fetched."""
        return self.served / max(1, self.served + self.fetched)


_OUTDATED = -2


def _current_place(path: str, foresight: Foresight, versions: Mapping[str, str]) -> int:
    name = os.path.basename(path)
    version = name[NAME_LENGTH : 2 * NAME_LENGTH]
    return _place(path, foresight) if versions.get(name[:NAME_LENGTH], version) == version else _OUTDATED


def _place(path: str, foresight: Foresight) -> int:
    name = os.path.basename(path)
    return foresight.place_of(name[:NAME_LENGTH], int(name.rpartition("-")[2]))


_COUNTS = struct.Struct("<4q")
"""`CacheStats` in the file beside the pieces."""


@dataclass
class _Scan:
    """The pieces in the folder."""

    paths: list[str]
    sizes: NDArray[np.int64]
    used_s: NDArray[np.float64]
    """When each was last read."""
    at_s: float
    """When the folder was scanned."""
    took_s: float
    """How long that took."""
    places: NDArray[np.int64] | None = None
    """The place of each piece in `foresight`; -1 for pieces of other datasets."""
    foresight: Foresight | None = None

    def places_in(self, foresight: Foresight, versions: Mapping[str, str]) -> NDArray[np.int64]:
        """Return the place of each piece; `_OUTDATED` if its blob has another version now."""
        if self.places is None or self.foresight is not foresight:
            self.foresight = foresight
            self.places = np.array([_current_place(path, foresight, versions) for path in self.paths], np.int64)
        return self.places

    def add(self, path: str, size: int) -> None:
        """Add a new piece."""
        self.paths.append(path)
        self.sizes, self.used_s = np.append(self.sizes, size), np.append(self.used_s, time.time())
        if self.places is not None and self.foresight is not None:
            self.places = np.append(self.places, _place(path, self.foresight))

    def leave_out(self, places: NDArray[np.int64]) -> None:
        """Forget some pieces."""
        is_kept = np.ones(len(self.paths), bool)
        is_kept[places] = False
        self.paths = [self.paths[place] for place in np.flatnonzero(is_kept).tolist()]
        self.sizes, self.used_s = self.sizes[is_kept], self.used_s[is_kept]
        self.places = None if self.places is None else self.places[is_kept]


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
        self.folder = local_output("shard_cache", folder)
        self.max_bytes = max_bytes
        check_limit("shard_cache_bytes", max_bytes)
        check_own(self.folder, MARK)
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing: each process counts its own bytes."""
        self._served = self._uncached = 0
        """Bytes that were not counted yet: read from the disk, and fetched but not stored."""
        self._scan: _Scan | None = None
        self._versions: dict[str, str] = {}
        """The version of each blob that was written to the cache here; pieces of others are of no use."""
        self._reserved = 0
        """Pieces that this process is fetching because there is room for them."""
        self._lock = threading.Lock()
        self._compared: set[str] = set()
        """Names of pieces whose checksum was compared."""
        self._last = threading.local()
        """The piece that each thread read last: the reads of a batch are often close together."""

    def path_of(self, blob: Blob, number: int) -> Path:
        """Return the path of a piece, whether or not it is cached."""
        name, version = name_of(blob.address), hashlib.blake2b(f"{blob.size}\n{blob.tag}".encode(), digest_size=8)
        self._versions[name] = version.hexdigest()
        return self.folder / f"{name}{version.hexdigest()}-{number}"

    def read(self, path: Path, size: int) -> bytes | None:
        """Return the bytes of a piece; None if it is missing or incomplete."""
        body = self._loaded(path, size)
        if body is not None:
            self._count_served(path, size)
        return body

    def read_part(self, path: Path, size: int, start: int, stop: int) -> bytes | None:
        """Return some bytes of a piece; None if it is missing or incomplete.

        Only the first of these reads in a process compares the checksum of the piece.
        """
        if path.name not in self._compared:
            body = self._loaded(path, size)
            if body is None:
                return None
            self._compared.add(path.name)
            part = body[start:stop]
        else:
            try:
                with open(path, "rb", buffering=0) as file:
                    part = os.pread(file.fileno(), stop - start, start)
            except OSError:  # not there
                return None
            if len(part) != stop - start:
                return None
        self._count_served(path, stop - start)
        return part

    def _loaded(self, path: Path, size: int) -> bytes | None:
        try:
            content = path.read_bytes()
        except OSError:  # not there
            return None
        body = content[:-4]
        if len(body) != size or content[-4:] != struct.pack("<I", zlib.crc32(body)):
            return None  # written before a power failure
        return body

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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / MARK) as mark:
                size = len(body) + 4
                before = path.stat().st_size if path.exists() else 0  # another process was quicker
                counts = self._counts(mark)
                counts = counts._replace(held=counts.held + size - before, fetched=counts.fetched + len(body))
                is_stored = True
                if counts.held > self.max_bytes:
                    counts, is_stored = self._make_room(counts, path, size, foresight)
                # Before the piece: a process killed in between leaves too high a count, which the next scan corrects.
                self._put_counts(mark, counts)
                if is_stored:
                    try:
                        write_whole(path, body, struct.pack("<I", zlib.crc32(body)))
                    except OSError:  # a full disk
                        self._put_counts(mark, counts._replace(held=counts.held - size + before))
                        raise
                    if self._scan is not None:
                        self._scan.add(str(path), size)
        except OSError as exc:
            warn_user(
                f"{self.folder} cannot be written ({exc.strerror or exc}): shards are read without a cache there. Make "
                "room, or give shard_cache= a folder that can be written to.",
                PerformanceWarning,
            )

    @contextlib.contextmanager
    def reserved(self, foresight: Foresight) -> Iterator[bool]:
        """Reserve room for a piece while it is fetched. Yields False if it would replace one that is needed."""
        with self._lock:
            has_room = self._has_room(foresight)
            self._reserved += has_room
        try:
            yield has_room
        finally:
            with self._lock:
                self._reserved -= has_room

    def _has_room(self, foresight: Foresight) -> bool:
        most = self.max_bytes - (PIECE_BYTES + 4) * (self._reserved + 1)
        try:
            with open(self.folder / MARK, "rb") as file:
                if self._counts(file.fileno()).held <= most:
                    return True
            with _locked(self.folder / MARK) as mark:
                last, scan = self._scan, self._scanned(anew=False)
                if scan is not last:  # corrects the count, if a process was killed
                    counts = self._counts(mark)._replace(held=int(scan.sizes.sum()))
                    self._put_counts(mark, counts)
                    if counts.held <= most:
                        return True
                return bool(self._times(scan, foresight).max(initial=-math.inf) == math.inf)
        except OSError:  # there is no folder yet, or it cannot be written to
            return True

    def stats(self) -> CacheStats:
        """Return what the folder holds, and what went through it."""
        try:
            with _locked(self.folder / MARK) as mark:
                self._put_counts(mark, self._counts(mark))
                return self._counts(mark)
        except OSError:  # there is no folder yet, or it cannot be written to
            return CacheStats()

    def _counts(self, mark: int) -> CacheStats:
        data = os.pread(mark, _COUNTS.size, 0)
        if len(data) < _COUNTS.size:  # a new folder, or one whose first process was killed
            return CacheStats(held=int(self._scanned().sizes.sum()))
        return CacheStats(*_COUNTS.unpack(data))

    def _put_counts(self, mark: int, counts: CacheStats) -> None:
        served, self._served = self._served, 0
        uncached, self._uncached = self._uncached, 0
        counts = CacheStats(counts.held, counts.fetched + uncached, counts.served + served, counts.dropped + uncached)
        os.pwrite(mark, _COUNTS.pack(*counts), 0)

    def _scanned(self, *, anew: bool = True) -> _Scan:
        """Return the pieces in the folder; deletes abandoned files. If not `anew`, a recent result will do."""
        began_s, last = time.monotonic(), self._scan
        if not anew and last is not None and began_s - last.at_s < max(_SCAN_S, last.took_s / _SCAN_SHARE):
            return last
        found = list[tuple[str, int, float]]()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    name, status = _NAME.fullmatch(entry.name), entry.stat()
                    if name and not name["begun"]:
                        found.append((entry.path, status.st_size, status.st_mtime))
                    elif name and status.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(entry.path)
        sizes, used_s = np.array([size for _, size, _ in found], np.int64), np.array([used for _, _, used in found])
        now_s = time.monotonic()
        self._scan = _Scan([path for path, _, _ in found], sizes, used_s, now_s, now_s - began_s)
        return self._scan

    def _make_room(self, counts: CacheStats, path: Path, size: int, foresight: Foresight) -> tuple[CacheStats, bool]:
        """Delete pieces until a new one fits. Return the counts, and whether to store the new piece."""
        last = self._scan
        scan = self._scanned(anew=False)
        if str(path) in scan.paths:  # it is replaced
            scan.leave_out(np.array([scan.paths.index(str(path))]))
        # Other processes have changed what an old scan found. A new one corrects the count.
        held = counts.held if scan is last else int(scan.sizes.sum()) + size
        slack, new = int(self.max_bytes * _SLACK), foresight.after(_place(str(path), foresight))
        fits, dropped = True, 0
        while fits and held > self.max_bytes:  # again, if other processes have deleted these pieces already
            times = self._times(scan, foresight)
            victims, fits = victims_of(times, scan.sizes, new, held - self.max_bytes, slack)
            freed = sum(_deleted(scan.paths[place]) for place in victims.tolist()) + (0 if fits else size)
            scan.leave_out(victims)
            held, dropped = held - freed, dropped + freed
        return counts._replace(held=held, dropped=counts.dropped + dropped), fits

    def _times(self, scan: _Scan, foresight: Foresight) -> NDArray[np.float64]:
        """Return when each piece is needed next."""
        known = scan.places_in(foresight, self._versions)
        of_others = np.where(scan.used_s < time.time() - _UNUSED_S, math.inf, -math.inf)
        return np.where(
            known >= 0, foresight.times()[np.maximum(known, 0)], np.where(known == _OUTDATED, math.inf, of_others)
        )

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r}, max_bytes={self.max_bytes})"


class ShardCached:
    """What datasets with the option `shard_cache=` have in common."""

    _shard_cache: DiskCache | None = None
    """Caches pieces of remote files."""

    def shard_cache_stats(self) -> CacheStats:
        """Return what the shard cache holds, and what went through it, for all processes; zeros if there is none.

        The attributes `held`, `fetched`, `served` (from the disk) and `dropped` are bytes, and `hit_rate` is the share
        that was served.
        """
        return CacheStats() if self._shard_cache is None else self._shard_cache.stats()


def _deleted(path: str) -> int:
    """Delete a piece; return its bytes, 0 if another process has deleted it."""
    try:
        size = os.stat(path).st_size
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return size


def victims_of(
    times: NDArray[np.float64], sizes: NDArray[np.int64], new: float, excess: int, slack: int = 0
) -> tuple[NDArray[np.int64], bool]:
    """Return which pieces to delete, and whether to store a new one: what is needed latest goes.

    Args:
        times: when each piece is needed next; minus infinity if it must stay.
        sizes: their bytes.
        new: when the new piece is needed.
        excess: the bytes that are too many.
        slack: bytes to free beyond that, so that the next piece finds room, if they are needed later than the new one.

    Example:
        >>> times, sizes = np.array([0.3, 1.9, 1.2]), np.array([10, 10, 10])
        >>> victims_of(times, sizes, new=1.5, excess=10)
        (array([1]), True)
        >>> victims_of(times, sizes, new=2.0, excess=10)
        (array([], dtype=int64), False)
    """
    if excess <= 0:
        return np.empty(0, np.int64), True
    later = np.flatnonzero(times > new)
    latest = later[np.argsort(-times[later], kind="stable")]
    freed = np.cumsum(sizes[latest])
    if not len(freed) or freed[-1] < excess:
        return latest[:0], False
    return latest[: int(np.searchsorted(freed, excess + slack)) + 1], True


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
