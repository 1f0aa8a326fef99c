"""Which files a user means: a path, a pattern, or a list of these."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable

from feedline.datasets.natural import natural
from feedline.datasets.source import checked_path
from feedline.errors import BadOption

PathLike = str | os.PathLike[str]


def files_of(given: PathLike | Iterable[PathLike]) -> list[str]:
    """Return the absolute paths of the files.

    Those that a pattern stands for come in natural order: `part-9` before `part-10`. A list keeps its order.

    Raises:
        BadOption: it is no path, or a pattern matches nothing.
    """
    if isinstance(given, (str, os.PathLike)):
        return _expanded(given)
    try:
        several = list(given)
    except TypeError as exc:
        raise BadOption(f"{given!r} is not a path, a pattern or a list of paths.") from exc
    found = [path for one in several for path in _expanded(one)]
    if not found:
        raise BadOption("The list of files is empty.")
    return found


def _expanded(given: object) -> list[str]:
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise BadOption(f"{given!r} is not a path or a pattern.")
    path = os.path.abspath(os.path.expanduser(checked_path(given)))
    if os.path.isdir(path):
        raise BadOption(
            f"{path} is a folder. Say which of its files are meant with a pattern: {os.path.join(path, '*.h5')!r}."
        )
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)), key=natural)
    if not found:
        raise BadOption(f"The pattern {os.fspath(given)!r} matches no file.")
    return found
