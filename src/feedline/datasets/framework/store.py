"""What feedline derives from other files and keeps on disk, such as an index or an unpacked copy: safe to lose.

An entry is a file that says what it was derived from:

    content | CRC-32 of each block | label | magic, size of content, size of label, CRC-32 of the rest

A name only finds an entry. It counts if its label is the one that is asked for, with the stamp of the file that it was
derived from, and if its checksums match; else it is made again. It is written under another name, flushed and renamed:
after a crash at any moment, the name refers to a whole file or to none. Each read compares the checksums of the blocks
that it touches, so a few bytes of a large entry cost one block. Readers never follow a link or wait for a pipe.

Entries lie in folders of feedline's own, marked by a file. It never writes among other files, nor reads what another
user could have put there. If a folder cannot be written to, it warns once, and works without.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from feedline.datasets.framework.checksums import BlockSums
from feedline.datasets.framework.paths import local_output
from feedline.errors import BadOption, CorruptSource, DataWarning, PerformanceWarning, SourceError, warn_user
from feedline.memory.sharing import records
from feedline.system.files import drop_abandoned, replacing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

VARIABLE = "FEEDLINE_CACHE"
"""The environment variable that sets the user's cache folder."""
SHARED = "FEEDLINE_SHARED_CACHE"
"""The environment variable that, set to 1, makes feedline trust caches of other users."""
MARK = ".feedline-cache"
"""The file that marks a folder as feedline's own."""
BLOCK_BYTES = 1 << 14
_MAGIC = b"FDLKEPT2"
_FOOTER = struct.Struct("<8sQII")
_TAIL_BYTES = 1 << 12
"""Bytes to read from the end at first: they include the checksums of 16 MB."""
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

Cache = bool | str | os.PathLike[str]
"""Where to keep: True for the user's cache folder, False for nowhere, or a folder."""

_prepared: set[Path] = set()
"""Folders that this process has written to."""
_swept: set[tuple[str, str]] = set()
"""Patterns and stamps of parts, of which this process has removed those of other versions."""
_given_up: set[Path] = set()
"""Folders that this process could not write to."""


def cache_home() -> Path:
    """Return the user's cache folder: `$FEEDLINE_CACHE`, or `feedline` in the usual place."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "feedline"))


def checked_cache(cache: Cache) -> Cache:
    """Return the option `cache=`. Raises BadOption: it is neither a bool nor a folder for feedline alone."""
    if isinstance(cache, bool):
        return cache
    if not isinstance(cache, (str, os.PathLike)):
        raise BadOption(f"cache={cache!r} is neither True, False nor the path of a folder.")
    folder = local_output("cache", cache)
    check_own(folder)
    return folder


def is_foreign(status: os.stat_result) -> bool:
    """True for a file or folder of another user (not root), unless other users' caches are trusted."""
    return hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid()) and os.environ.get(SHARED) != "1"


def check_own(folder: Path, mark: str = MARK) -> None:
    """Refuse a folder of another user, or one with other files. Raises BadOption.

    A file called `mark` identifies feedline's own folders.
    """
    try:
        status, names = os.stat(folder), sorted(os.listdir(folder))
    except OSError:
        return  # it does not exist yet, or writing to it says why not
    if is_foreign(status):
        raise BadOption(
            f"{folder} belongs to another user, who could store false data there. Choose a folder of your own, or set "
            f"{SHARED}=1 if you trust that user."
        )
    # Leftovers of a killed program, and folders inside that have the mark, are feedline's own too.
    foreign = (name for name in names if not name.startswith(mark) and not (folder / name / mark).exists())
    if mark not in names and (found := next(foreign, None)) and not (folder / mark).exists():  # perhaps by now
        raise BadOption(
            f"{folder} contains other files, such as {found!r}, and feedline keeps its files apart. Choose a new or "
            f"empty folder, such as {str(folder / 'feedline')!r}."
        )


@dataclass(frozen=True)
class Entry:
    """Something derived that is kept, whether or not it is there yet.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     entry = Entry.at(folder, "lengths", "/data/a.txt", stamp="1")
        ...     entry.save([3, 4])
        ...     entry.load(tuple), Entry.at(folder, "lengths", "/data/a.txt", stamp="2").load(tuple)
        ((3, 4), None)
    """

    path: Path
    label: bytes
    """What it was derived from, and which version of it."""
    parts: str = ""
    """The pattern of the names of all parts, if it is one."""

    # object: what JSON holds.
    @classmethod
    def at(
        cls, folder: str | os.PathLike[str], kind: str, about: object, stamp: str = "", part: object = None
    ) -> Entry:
        """Return the entry in a folder.

        Args:
            folder: where.
            kind: what is derived; the suffix of its file.
            about: what it was derived from. Each has one entry, or several parts; those of a changed one replace them.
            stamp: the version of that, such as `File.stamp`.
            part: which part this is, if there are several.
        """
        texts = [json.dumps(one, sort_keys=True) for one in (about, part)]
        whole, own = (hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts)
        label = json.dumps([*texts, stamp]).encode()
        if part is None:
            return cls(Path(folder) / f"{whole}.{kind}", label)
        parts = os.path.join(glob.escape(os.fspath(folder)), f"{whole}-*.{kind}")
        return cls(Path(folder) / f"{whole}-{own}.{kind}", label, parts)

    @classmethod
    def within(cls, cache: Cache, kind: str, about: object, stamp: str = "") -> Entry | None:
        """Return the entry where the option `cache=` says; None if nothing is to be kept.

        The caller has checked the option with `checked_cache`, once: that lists the folder.
        """
        if cache is False:
            return None
        return cls.at(cache_home() if cache is True else local_output("cache", cache), kind, about, stamp)

    def open(self) -> StoredFile | None:
        """Open the entry; None if there is none that counts. Warns: it is damaged."""
        found = StoredFile.open(self.path)
        if found is None:
            if self.path.is_file() and not self.path.is_symlink():
                self.warn_damaged()
        elif found.label != self.label or found.is_foreign or is_foreign(os.stat(self.path.parent)):
            found.close()
            return None
        return found

    def write(self, pieces: Iterable[ReadableBuffer]) -> bool:
        """Write the content, and replace what is there. If that fails, warn and return False."""
        folder = self.path.parent
        if folder in _given_up:
            return False
        try:
            if folder not in _prepared or not (folder / MARK).exists():
                check_own(folder)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / MARK).touch()
                drop_abandoned(folder)
                _prepared.add(folder)
            write_stored(self.path, pieces, label=self.label)
        except SourceError:  # of the pieces: an OSError too, but not one of this disk
            raise
        except (BadOption, OSError) as exc:
            _given_up.add(folder)
            why = str(exc) if isinstance(exc, BadOption) else f"{exc.strerror or exc}."
            warn_user(
                f"What feedline derives cannot be kept in {folder}, and is computed again each time: {why} Make room, "
                f"or choose another folder with the option of the dataset or with {VARIABLE}.",
                PerformanceWarning,
            )
            return False
        if self.parts:
            self._drop_older_parts()
        return True

    def _drop_older_parts(self) -> None:
        stamp = json.loads(self.label)[-1]
        if (self.parts, stamp) in _swept:
            return
        _swept.add((self.parts, stamp))
        for path in glob.glob(self.parts):
            found = StoredFile.open(path)
            if found is not None:
                found.close()
                if json.loads(found.label)[-1] != stamp:
                    Path(path).unlink(missing_ok=True)

    # Any: anything that a record can hold.
    def load(self, make: Callable[[Any], T]) -> T | None:
        """Return `make` of the value that `save` stored; None if there is none, or it does not fit."""
        file = self.open()
        if file is None:
            return None
        try:
            content = file.read(0, file.size)
            if content is None:
                self.warn_damaged()
                return None
            return make(records.decode(content))
        except (CorruptSource, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return None  # written by another version
        finally:
            file.close()

    def save(self, value: object) -> None:
        """Store a value: anything that a record can hold. If that fails, only warn."""
        self.write([records.encode(value)])

    def warn_damaged(self) -> None:
        """Say that the entry is made again: a caller has found the content to be damaged."""
        warn_user(f"{self.path} is damaged or cut off, and is made again. Is the disk failing?", DataWarning)


def write_stored(path: Path, pieces: Iterable[ReadableBuffer], *, label: bytes = b"", flush: bool = True) -> None:
    """Write a file that `StoredFile` opens. Without `flush`, a power failure may damage it. Raises OSError."""
    sums, size = BlockSums(BLOCK_BYTES), 0
    with replacing(path, flush=flush) as file:
        for piece in pieces:
            file.write(piece)
            sums.add(piece)
            size += memoryview(piece).nbytes
        table = sums.finish().tobytes()
        file.write(table + label + _footer(size, len(label), table + label))


def stored_bytes(size: int) -> int:
    """Return the bytes of a file with so many bytes of content and no label."""
    return size + 4 * -(-size // BLOCK_BYTES) + _FOOTER.size


def _footer(size: int, label_size: int, rest: ReadableBuffer) -> bytes:
    head = _FOOTER.pack(_MAGIC, size, label_size, 0)
    return head[:-4] + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head)))


class StoredFile:
    """An open file that `write_stored` wrote. Threads may read it at the same time."""

    def __init__(self, descriptor: int, size: int, sums: bytes, label: bytes) -> None:
        self.descriptor = descriptor
        self.size = size
        """Bytes of the content."""
        self.label = label
        self.tag = f"{zlib.crc32(sums):08x}"
        """Changes with the content."""
        self._sums = memoryview(sums).cast("I")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StoredFile | None:
        """Open a file; None if there is none that was completed. Blocks of the content may be damaged."""
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
    def _of(cls, descriptor: int) -> StoredFile | None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < _FOOTER.size:
            return None
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, status.st_size - _TAIL_BYTES))
        footer = tail[-_FOOTER.size :]
        magic, size, label_size, _ = _FOOTER.unpack(footer)
        if magic != _MAGIC or stored_bytes(size) + label_size != status.st_size:
            return None
        start, stop = size - status.st_size, -_FOOTER.size
        rest = tail[start:stop] if -start <= len(tail) else os.pread(descriptor, stop - start, size)
        if _footer(size, label_size, rest) != footer:
            return None
        end = len(rest) - label_size
        return cls(descriptor, size, rest[:end], rest[end:])

    @property
    def is_foreign(self) -> bool:
        """True if it belongs to another user, who could have stored anything there."""
        return is_foreign(os.fstat(self.descriptor))

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


def read_stored(path: str | os.PathLike[str]) -> bytes | None:
    """Return the content of a file that `write_stored` wrote; None if there is none, or it is damaged."""
    file = StoredFile.open(path)
    if file is None:
        return None
    try:
        return file.read(0, file.size)
    finally:
        file.close()
