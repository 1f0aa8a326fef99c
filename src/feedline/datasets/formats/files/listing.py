"""The files of a folder: listed once, cached on disk, and held in little memory.

One thread lists files until it starts waiting, and then several do. In remote directories most of the time is spent
waiting, once for each directory. If directories are in memory, threads only wait for each other: Python releases its
lock for every name.

Only regular files count: reading a named pipe or a device may never end. Links are followed after everything reachable
without them. A link to a directory that was already listed is skipped, so that no file comes twice and link cycles end.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.store import Cache, Entry
from feedline.errors import DataWarning, SourceError, warn_user
from feedline.memory.sharing.packed import Packed

_THREADS = 16
"""Directories to read at the same time, once reading turns out to be mostly waiting. A guess."""

_LONGEST_WAIT_S = 0.05
"""How long one thread may wait before others help."""


Endings = tuple[str, ...] | None
"""Allowed endings of names, in lower case; None for any."""

Stamp = tuple[int, int, int]
"""Unchanged while a directory does not change: modification time in ns, inode, device."""


@dataclass(frozen=True)
class Directory:
    """The content of a directory."""

    path: str
    """Below the folder, with slashes; empty for the folder itself."""
    stamp: Stamp
    """Taken before the directory was read."""
    names: bytes
    """Names of the wanted files, sorted, separated by zero bytes: a tenth of the size of a list of strings."""
    count: int
    left_out: int
    """Number of other files."""

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of the files, below the folder, in UTF-8."""
        begin = encoded(f"{self.path}/") if self.path else b""
        return (begin + name for name in self.names.split(b"\0")) if self.count else iter(())


def encoded(text: str) -> bytes:
    """Return a path in UTF-8; names that are not valid text keep their odd bytes."""
    return text.encode("utf-8", "surrogatepass")


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a directory."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino, found.st_dev


def scan(root: str, endings: Endings) -> list[Directory]:
    """Return a folder and all directories below it, in the order of their files.

    The folder's directories come by name, and in each of them all directories by path: the order of
    `sorted(os.walk(...))` for each in turn. Raises SourceError: a directory cannot be read.
    """
    found: dict[tuple[int, int], Directory] = {}
    kept, again, links = [], [], [""]
    while links:
        answers = sorted(_below(root, endings, links), key=lambda answer: answer.directory.path)
        is_real, links = not found, []
        for answer in answers:
            directory = answer.directory
            known = found.setdefault(directory.stamp[1:], directory)
            if known is directory or is_real:  # without links nothing repeats, even if inode numbers do
                kept.append(directory)
                links += answer.links
            elif not f"{directory.path}/".startswith(f"{known.path}/" if known.path else ""):
                again.append((directory.path, known.path))
    if again:
        warn_user(
            f"{len(again)} links in {root} lead to directories that are already listed, such as {again[0][0]!r}, which "
            f"is {again[0][1]!r}. Their files are listed once, without the link.",
            DataWarning,
        )
    return sorted(kept, key=lambda directory: (directory.path.partition("/")[0], directory.path))


def _below(root: str, endings: Endings, paths: Iterable[str]) -> list[_Answer]:
    """Return some directories, and all below them that are reachable without links."""
    found: list[_Answer] = []
    left = deque(paths)
    clock = _Clock()
    while left and not clock.is_waiting():
        found.append(_read(root, endings, left.popleft()))
        left.extend(found[-1].below)
    if left:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="feedline-scan") as threads:
            while left:  # one level at a time; the first error stops it and cancels pending reads
                answers = list(threads.map(partial(_read, root, endings), left))
                found += answers
                left = deque(path for answer in answers for path in answer.below)
    return found


class _Clock:
    """Detects whether time is spent waiting. Then threads help; otherwise they hinder each other."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.perf_counter(), time.thread_time()

    def is_waiting(self) -> bool:
        elapsed_s = time.perf_counter() - self._began_s
        waited_s = elapsed_s - (time.thread_time() - self._cpu_s)
        return waited_s > max(_LONGEST_WAIT_S, elapsed_s / 2)


@dataclass(frozen=True)
class _Answer:
    """A directory that was read, with the paths of its subdirectories and of links to directories."""

    directory: Directory
    below: list[str]
    links: list[str]


def _read(root: str, endings: Endings, path: str) -> _Answer:
    full = os.path.join(root, path) if path else root
    try:
        stamp = stamp_of(full)  # before reading, so that concurrent changes are detected later
        files: list[str] = []
        below: list[str] = []
        links: list[str] = []
        with os.scandir(full) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif (mode := _mode_of(entry.path)) is None or stat.S_ISREG(mode):
                    files.append(entry.name)
                elif stat.S_ISDIR(mode):
                    links.append(entry.name)
    except OSError as exc:
        raise SourceError(
            exc.errno,
            f"The directory cannot be listed ({exc.strerror}). Every directory below the folder must be readable; this "
            "one may also have been removed in the meantime",
            full,
        ) from exc
    wanted = sorted(files if endings is None else (name for name in files if name.lower().endswith(endings)))
    names = b"\0".join(map(encoded, wanted))
    begin = f"{path}/" if path else ""
    return _Answer(
        Directory(path, stamp, names, len(wanted), len(files) - len(wanted)),
        [begin + name for name in below],
        [begin + name for name in links],
    )


def _mode_of(path: str) -> int | None:
    """Return the mode of a link's target; None if the link is broken, which reading it will report."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return None


_VERSION = 3
_WORTH_KEEPING = 10_000
"""Listings of at least this many files go to the user's cache folder. Shorter ones are listed as fast as read."""

_RECENT_NS = 2_000_000_000
"""A directory that changed this shortly before it was listed may have changed again with the same time: file system
clocks tick slowly, some every two seconds."""


@dataclass(frozen=True)
class Listing:
    """The files below a folder, in order."""

    paths: Packed
    """Below the folder, with slashes."""
    directories: Sequence[str]
    """All listed directories, including empty ones; the folder itself is the empty string."""
    counts: NDArray[np.int64]
    """Number of files directly in each directory; they add up to all files."""
    left_out: int
    """Number of unwanted files."""

    def __len__(self) -> int:
        return len(self.paths)


def list_files(root: str, endings: Endings, cache: Cache) -> Listing:
    """Return the files below a folder, from the cache if no directory has changed since."""
    if not os.path.isdir(root):
        raise SourceError(
            f"{root} {'is not a folder' if os.path.lexists(root) else 'does not exist'}, so there are no files to "
            "list. Pass the folder that contains the files, or a list of paths."
        )
    absolute = os.path.abspath(root)
    about = {"version": _VERSION, "root": absolute, "extensions": endings}
    file = Entry.within(cache, "listing", about)
    known = None if file is None else file.load(partial(_from_cache, absolute))
    if known is not None:
        return known
    began_ns = time.time_ns()
    found = scan(absolute, endings)
    paths = Packed(chain.from_iterable(directory.paths() for directory in found), is_text=True, is_encoded=True)
    counts = np.array([directory.count for directory in found], np.int64)
    left_out = sum(directory.left_out for directory in found)
    listing = Listing(paths, [directory.path for directory in found], counts, left_out)
    if file is not None and (cache is not True or len(listing) >= _WORTH_KEEPING):
        file.save(_to_cache(listing, found, began_ns))
    return listing


def _to_cache(listing: Listing, found: list[Directory], began_ns: int) -> object:
    return {
        "paths": listing.paths.arrays(),
        "directories": Packed(listing.directories, is_text=True).arrays(),
        "counts": listing.counts,
        "left_out": listing.left_out,
        "stamps": np.array([directory.stamp for directory in found], np.uint64),
        "began_ns": began_ns,
    }


def _from_cache(root: str, stored: Any) -> Listing | None:
    """Return a cached listing, None if a directory has changed."""
    packed = Packed.of_arrays(stored["directories"])
    directories = list(packed.each(range(len(packed))))
    stamps = stored["stamps"]
    if stamps[:, 0].max(initial=0) > stored["began_ns"] - _RECENT_NS:
        return None
    full = [os.path.join(root, path) if path else root for path in directories]
    try:
        if not np.array_equal(np.array(_stamps(full), np.uint64).reshape(-1, 3), stamps):
            return None
    except OSError:
        return None  # one is gone
    listing = Listing(Packed.of_arrays(stored["paths"]), directories, stored["counts"], stored["left_out"])
    if listing.counts.shape != (len(directories),) or int(listing.counts.sum()) != len(listing):
        raise ValueError("its counts are not those of its files")
    return listing


def _stamps(paths: list[str]) -> list[tuple[int, int, int]]:
    with ThreadPoolExecutor(8, thread_name_prefix="feedline-stat") as threads:
        parts = [paths[number::8] for number in range(8)]
        found = list(threads.map(lambda part: [stamp_of(path) for path in part], parts))
    return [found[number % 8][number // 8] for number in range(len(paths))]
