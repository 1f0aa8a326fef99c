"""Which files the user means, and whether they have changed since they were inspected."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from feedline.datasets.storage.addresses import shown_address
from feedline.errors import BadOption, SourceChanged, SourceError

_HIDDEN = (".", "_")
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of an address, also of one that was made into a Path; a single letter is a drive."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A file, a folder, a pattern, or several of these."""


@dataclass(frozen=True)
class File:
    """A file as it was when it was inspected."""

    path: str
    """As shown to users."""
    size: int
    tag: int | str
    """Modification time; for remote files, the entity tag."""
    changed: str = field(default="", compare=False, kw_only=True)
    """What `change_of` returned; empty for remote files."""

    @classmethod
    def at(cls, path: str) -> File:
        """Inspect a file. Raises SourceError: it does not exist, or cannot be inspected."""
        try:
            found = os.stat(path)
        except OSError as exc:
            raise SourceError(f"{path!r} cannot be read: {exc.strerror or exc}.") from exc
        return cls(path, found.st_size, found.st_mtime_ns, changed=change_of(found))

    @property
    def stamp(self) -> str:
        """What a kept result that was derived from the file belongs to."""
        return f"{self.size}-{self.tag}-{self.changed}"

    @property
    def identity(self) -> str:
        """What distinguishes it from other files, on this machine and in later runs."""
        return os.path.abspath(self.path)

    def check(self) -> None:
        """Check that the file has not changed. Raises SourceChanged: it has; SourceError: it is gone."""
        now = File.at(self.path)
        if now != self:
            raise SourceChanged(
                f"{self.path!r} has changed since this dataset inspected it: it had {self.size} bytes and now has "
                f"{now.size}, or was written again. Its samples may differ: create the dataset again. Do not write to "
                "files that are being read; write new ones and rename them."
            )


def change_of(status: os.stat_result) -> str:
    """Return what changes if a local file is written again, even if its size and modification time stay the same.

    Programs that copy one file over another (`cp -p`, `rsync -t`, `tar`) set the modification time, and some always set
    the same one. They cannot set the time of the last change, nor the inode. While a file is open, only its
    modification time matters: a new link or new permissions are no new content.
    """
    return f"{status.st_ctime_ns}-{status.st_ino}"


def found_files(paths: Paths, endings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the absolute paths of the files that the user means.

    Files of a folder or pattern come in natural order, `part-9` before `part-10`; a list keeps its order. Raises
    BadOption: these are not paths, or are remote addresses; SourceError: no files were found.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else list(paths)
    if not given:
        raise BadOption("The list of files is empty: there is nothing to read.")
    return tuple(file for path in given for file in _of_one(path, endings))


def _of_one(given: str | os.PathLike[str], endings: tuple[str, ...]) -> list[str]:
    name: object = given  # any value from the user
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise BadOption(f"{given!r} is not a path, a pattern or a list of these.")
    path = os.path.abspath(os.path.expanduser(checked_path(given)))
    if os.path.isdir(path):
        inside = [file for file in files_below(path) if is_data(os.path.relpath(file, path), endings)]
        found = sorted(inside, key=natural)
        if not found:
            raise SourceError(f"The folder {path!r} has no files that end in {' or '.join(endings)}.")
        return found
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]  # inspecting it later reports if it does not exist
    found = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)), key=natural)
    if not found:
        raise SourceError(f"No file matches the pattern {os.fspath(given)!r}. Check the folder.")
    return found


def files_below(path: str) -> Iterator[str]:
    """Yield the files in a folder that are not hidden, and in no hidden folder: names that begin with `.` or `_`.

    Programs leave copies and unfinished files in such folders, `.ipynb_checkpoints` and `_temporary` among them.
    """
    for place, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        yield from (os.path.join(place, name) for name in names if not name.startswith(_HIDDEN))


def is_data(below: str, endings: tuple[str, ...]) -> bool:
    """True for the path, below the folder that the user named, of a file that is not hidden and has a known ending.

    Endings may be patterns.

    Example:
        >>> is_data("2026/a.csv", (".csv",)), is_data("a.tfrecord-00000-of-00002", (".tfrecord-*",))
        (True, True)
        >>> is_data("_temporary/0/a.csv", (".csv",)), is_data(".a.csv", (".csv",)), is_data("a.txt", (".csv",))
        (False, False, False)
    """
    parts = below.replace(os.sep, "/").split("/")
    is_hidden = any(part.startswith(_HIDDEN) for part in parts)
    return not is_hidden and any(fnmatch.fnmatchcase(parts[-1], f"*{ending}") for ending in endings)


def natural(path: str) -> list[tuple[int, str]]:
    """Return a sort key that treats numbers in names as numbers, as people expect."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def checked_path(given: str | os.PathLike[str]) -> str:
    """Return the path of a local file, or a pattern, as a string.

    Every source that reads only local files calls this first, so that no error shows secrets in an address. Raises
    BadOption: it is a remote address; SourceError: it looks like one without a protocol, and there is no such file.

    Example:
        >>> checked_path("/data/a.h5")
        '/data/a.h5'
        >>> checked_path("https://ada:secret@host/a.h5")
        Traceback (most recent call last):
        feedline.errors.BadOption: 'https://***@host/a.h5' is an address, and only local files are read here. ...
    """
    path = os.fspath(given)
    shown = shown_address(path)
    is_address = _PROTOCOL.match(path) is not None
    if not is_address and shown == path:
        return path
    local = os.path.expanduser(path)
    if os.path.exists(local) or glob.glob(local, recursive=True):
        return path
    if is_address:
        _check_slashes(path)
        raise BadOption(
            f"{shown!r} is an address, and only local files are read here. Copy the files to this machine and pass "
            "their path, without file://. TarDataset, ParquetDataset, JSONLines, TextLines, TFRecordDataset, "
            "MDSDataset, LitDataDataset, LanceDataset, TokenDataset and RemoteArrays read remote files."
        )
    raise SourceError(f"There is no file {shown!r}. Check the path.")


def local_output(option: str, given: object) -> Path:
    """Return the absolute path of a file or folder to write. Raises BadOption: it is no path, or an address.

    Example:
        >>> local_output("cache", "s3://bucket/cache")
        Traceback (most recent call last):
        feedline.errors.BadOption: cache='s3://bucket/cache' is an address. Name a path on a disk of this ...
    """
    if not isinstance(given, (str, os.PathLike)):
        raise BadOption(f"{option}={given!r} is not a path.")
    path = os.fspath(given)
    if _PROTOCOL.match(path):
        _check_slashes(path)
        raise BadOption(f"{option}={shown_address(path)!r} is an address. Name a path on a disk of this machine.")
    return Path(os.path.abspath(os.path.expanduser(path)))


def _check_slashes(address: str) -> None:
    """Refuse an address that was made into a Path. Raises BadOption: it was."""
    if "://" not in address:
        raise BadOption(
            f"{shown_address(address)!r} has only one slash after the protocol, as if it had been made into a Path. "
            "Pass addresses as strings."
        )
