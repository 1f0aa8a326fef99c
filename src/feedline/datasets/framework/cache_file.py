"""Files that cache results that are slow to compute: complete or absent, and safe to lose.

A cache file is a record in a kept file (`kept_file.py`). A file that is damaged, truncated or written by another
program is treated as missing. So is a file that belongs to another user, who could have put anything there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from feedline.datasets.framework.kept_file import keep, read_kept
from feedline.datasets.framework.paths import local_output
from feedline.errors import BadOption, CorruptSource, PerformanceWarning, warn_user
from feedline.memory.sharing import records

T = TypeVar("T")

VARIABLE = "FEEDLINE_CACHE"
"""The environment variable that sets the folder for cache files."""

SHARED = "FEEDLINE_SHARED_CACHE"
"""The environment variable that, set to 1, makes feedline trust caches of other users."""

Cache = bool | str | os.PathLike[str]
"""Where to cache: True for the user's cache folder, False for nowhere, or a folder."""


def cache_home() -> Path:
    """Return the folder for cache files: `$FEEDLINE_CACHE`, or `feedline` in the user's cache folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedline"


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """True if a file or folder belongs to another user (not root) and other users' caches are not trusted."""
    if os.environ.get(SHARED) == "1" or not hasattr(os, "geteuid"):
        return False
    try:
        return os.stat(path).st_uid not in (0, os.geteuid())
    except OSError:
        return False  # it does not exist, or reading it raises a clear error


def refuse_foreign(folder: str | os.PathLike[str]) -> None:
    """Refuse a cache folder that belongs to another user. Raises BadOption: it does."""
    if is_foreign(folder):
        raise BadOption(
            f"{folder} belongs to another user, who could store false data there, and feedline trusts its cache. "
            f"Choose a folder of your own; or, if you trust that user, set {SHARED}=1."
        )


def check_own(folder: Path, mark: str) -> None:
    """Refuse a folder of another user, or one with other files: feedline stores its files in a separate folder.

    Raises BadOption. A file called `mark` identifies feedline's own folders.
    """
    refuse_foreign(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # it does not exist yet, or writing to it raises an error
    # Leftovers of a killed program, and folders inside that have the mark, are feedline's own too.
    foreign = (name for name in names if not name.startswith(mark) and not (folder / name / mark).exists())
    if mark not in names and (found := next(foreign, None)) and not (folder / mark).exists():  # perhaps by now
        raise BadOption(
            f"{folder} contains other files, such as {found!r}, and feedline stores nothing among files that are not "
            f"its own. Choose a new or empty folder, such as {str(folder / 'samples')!r}."
        )


def checked_cache(cache: Cache) -> Cache:
    """Return the option `cache=`. Raises BadOption: it is neither a bool nor a path."""
    if isinstance(cache, bool):
        return cache
    if not isinstance(cache, (str, os.PathLike)):
        raise BadOption(f"cache={cache!r} is neither True, False nor the path of a folder.")
    return local_output("cache", cache)


# Any, throughout: anything that JSON or a record can hold.
class CacheFile:
    """A cached result, in a file whose name is derived from the subject."""

    def __init__(self, folder: str | os.PathLike[str], kind: str, about: object) -> None:
        self._about = json.dumps(about, sort_keys=True)
        digest = hashlib.blake2b(self._about.encode(), digest_size=16).hexdigest()
        self.path = Path(folder) / f"{digest}.{kind}"

    @classmethod
    def at(cls, cache: Cache, kind: str, about: object) -> CacheFile | None:
        """Return the file for the option `cache=`; None if caching is off."""
        chosen = checked_cache(cache)
        if chosen is False:
            return None
        return cls(cache_home() if chosen is True else chosen, kind, about)

    def read_as(self, make: Callable[[Any], T], stamp: str = "") -> T | None:
        """Return `make` of the stored value; None if there is none, it has another stamp or `make` cannot use it.

        So a file with a correct checksum but unusable content, perhaps from another version, is also treated as
        missing.
        """
        stored = self.read(stamp)
        try:
            return None if stored is None else make(stored)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return None

    def read(self, stamp: str = "") -> Any:
        """Return the stored value; None if there is none, it has another stamp, or it is damaged or another user's."""
        if is_foreign(self.path.parent) or is_foreign(self.path):
            return None
        content = read_kept(self.path)
        if content is None:
            return None
        try:
            stored = records.decode(content)
        except CorruptSource:
            return None
        if not isinstance(stored, dict) or (stored.get("about"), stored.get("stamp")) != (self._about, stamp):
            return None
        return stored.get("value")

    def is_of_others(self) -> bool:
        """True if there is a file that feedline has not written, not even a part of it."""
        try:
            with open(self.path, "rb") as file:
                return not records.MAGIC.startswith(file.read(len(records.MAGIC)))
        except OSError:
            return False  # it does not exist, or writing it warns

    def write(self, value: object, stamp: str = "") -> None:
        """Store a value, replacing any earlier one. If that fails, only warn.

        Args:
            value: anything that a record can hold.
            stamp: what the value was derived from, if that changes while the subject stays the same.
        """
        content = records.encode({"about": self._about, "stamp": stamp, "value": value})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if is_foreign(self.path.parent):
                raise PermissionError(
                    errno.EPERM, f"the folder belongs to another user; set {SHARED}=1 if you trust them"
                )
            keep(self.path, [content])
        except OSError as exc:
            warn_user(
                f"{self.path} cannot be written ({exc.strerror or exc}), so its content is computed again each time. "
                f"Set {VARIABLE} to a folder that you can write to, or pass cache=False.",
                PerformanceWarning,
            )
