"""Which files make a dataset, and whether they are still the ones that were looked at."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from feedline.datasets.natural import natural
from feedline.datasets.source import checked_path
from feedline.errors import BadOption, SourceChanged, SourceError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A file, a folder, a pattern, or several of these."""


@dataclass(frozen=True)
class File:
    """A file as it was when it was looked at."""

    path: str
    size: int
    changed_ns: int

    @classmethod
    def at(cls, path: str) -> File:
        """Look at a file.

        Raises:
            SourceError: there is none, or it cannot be looked at.
        """
        try:
            found = os.stat(path)
        except OSError as exc:
            raise SourceError(f"{path!r} cannot be read: {exc.strerror or exc}.") from exc
        return cls(path, found.st_size, found.st_mtime_ns)

    def check(self) -> None:
        """Make sure that the file is still the same.

        Raises:
            SourceChanged: it is not.
            SourceError: it is gone.
        """
        now = File.at(self.path)
        if now != self:
            raise SourceChanged(
                f"{self.path!r} has changed since this dataset looked at it: it had {self.size} bytes and has "
                f"{now.size} now, or was written again. Which samples there are may not hold any more: make the "
                "dataset anew, and do not write to files that are being read; write others and rename them."
            )


def found_files(paths: Paths, endings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that are meant, those of a folder or pattern in natural order: `part-9` before `part-10`.

    Args:
        paths: a file, a folder, a pattern with `*`, `?`, `[...]` or `**`, or several of these.
        endings: how the names of files in a folder end.

    Raises:
        BadOption: these are no paths, or addresses of something remote.
        SourceError: nothing is there.
    """
    if isinstance(paths, (str, os.PathLike)):
        given = [checked_path(paths)]
    else:
        given = [checked_path(path) for path in paths]
    if not given:
        raise BadOption("The list of files is empty: there is nothing to read.")
    return tuple(file for path in given for file in _of_one(path, endings))


def _of_one(path: str, endings: tuple[str, ...]) -> list[str]:
    if os.path.isdir(path):
        inside = [str(file) for ending in endings for file in Path(path).rglob(f"*{ending}")]
        found = sorted((file for file in inside if not os.path.basename(file).startswith((".", "_"))), key=natural)
        if not found:
            raise SourceError(f"The folder {path!r} has no files that end in {' or '.join(endings)}.")
        return found
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]  # should it not be there, that is said when it is looked at
    found = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)), key=natural)
    if not found:
        raise SourceError(f"No file fits the pattern {path!r}. Is the folder the right one?")
    return found
