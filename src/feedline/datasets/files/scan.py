"""All files below a folder, found by several threads at a time.

Most of the time goes into waiting for the disk or the network, once for each directory. Links are followed; one that
leads back to a directory it is in is not.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from feedline.errors import SourceError

_THREADS = 16
"""Directories that are read at the same time. A guess: local disks need two, network file systems take any number."""


@dataclass(frozen=True)
class Choice:
    """Which files are wanted."""

    extensions: tuple[str, ...] | None = None
    """How names may end, in lower case; None for any."""
    pattern: str | None = None
    """For the name, or if it has a slash, for the path below the folder."""

    def among(self, names: list[str], directory: str) -> list[str]:
        """Return those of the names in a directory that are wanted."""
        endings = self.extensions
        if endings is not None:
            names = [name for name in names if name.lower().endswith(endings)]
        if self.pattern is None:
            return names
        begin = f"{directory}/" if directory and "/" in self.pattern else ""
        expression = re.compile(fnmatch.translate(self.pattern))
        return [name for name in names if expression.match(begin + name)]


Stamp = tuple[int, int, int]
"""What a directory has when it was not changed: time of the last change in ns, inode, device."""


@dataclass(frozen=True)
class Directory:
    """What was found in a directory."""

    path: str
    """Below the folder, with slashes; empty for the folder itself."""
    stamp: Stamp
    """From before it was read."""
    names: bytes
    """Of the files that are wanted, sorted, with zero bytes between: a tenth of a list of strings."""
    count: int
    left_out: int
    """How many other files it has."""
    below: list[str]
    """Names of its directories."""

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of the files, below the folder, in UTF-8."""
        begin = encoded(f"{self.path}/") if self.path else b""
        return (begin + name for name in self.names.split(b"\0")) if self.count else iter(())


def encoded(text: str) -> bytes:
    """Return a path in UTF-8; names that no encoding fits keep their odd bytes."""
    return text.encode("utf-8", "surrogatepass")


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a directory."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino, found.st_dev


def scan(root: str, choice: Choice) -> list[Directory]:
    """Return all directories below a folder, itself included, in the order of their files.

    The order is that of the folder's directories by name, and in each of them of all directories by path: what
    `sorted(os.walk(...))` gives for one after the other.

    Raises:
        SourceError: a directory cannot be read.
    """
    found: list[Directory] = []
    # Each entry: what was read and the inodes above it, or what went wrong.
    done: SimpleQueue[tuple[Directory, frozenset[tuple[int, int]]] | BaseException] = SimpleQueue()

    def read(path: str, above: frozenset[tuple[int, int]]) -> None:
        try:
            directory = _read(root, path, choice, above)
            done.put((directory, above | {directory.stamp[1:]}) if directory is not None else LookupError())
        except BaseException as exc:
            done.put(exc)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="feedline-scan") as threads:
        waiting = _ask(threads, read, [""], frozenset())
        try:
            while waiting:
                answer = done.get()
                waiting -= 1
                if isinstance(answer, LookupError):
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                directory, inside = answer
                found.append(directory)
                begin = f"{directory.path}/" if directory.path else ""
                waiting += _ask(threads, read, [begin + name for name in directory.below], inside)
        finally:
            threads.shutdown(wait=True, cancel_futures=True)
    return sorted(found, key=lambda directory: (directory.path.partition("/")[0], directory.path))


def _ask(threads: Executor, read: Callable[..., None], paths: list[str], above: frozenset[tuple[int, int]]) -> int:
    for path in paths:
        threads.submit(read, path, above)
    return len(paths)


def _read(root: str, path: str, choice: Choice, above: frozenset[tuple[int, int]]) -> Directory | None:
    """Return what is in a directory; None if it is one of those above it."""
    full = os.path.join(root, path) if path else root
    try:
        stamp = stamp_of(full)  # before it is read: what changes meanwhile is then seen to have changed
        if stamp[1:] in above:
            return None
        files: list[str] = []
        below: list[str] = []
        with os.scandir(full) as entries:
            for entry in entries:
                (below if entry.is_dir() else files).append(entry.name)
    except OSError as exc:
        raise SourceError(
            exc.errno,
            f"The directory cannot be listed ({exc.strerror}). Every directory below the folder has to be readable; it "
            "may also have been removed meanwhile",
            full,
        ) from exc
    wanted = sorted(choice.among(files, path))
    return Directory(path, stamp, b"\0".join(map(encoded, wanted)), len(wanted), len(files) - len(wanted), below)
