"""The files of a folder: found once, kept on disk, and held in little memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.cache_file import Cache, CacheFile
from feedline.datasets.files.scan import Choice, Directory, scan, stamp_of
from feedline.errors import SourceError
from feedline.sharing.packed import Packed

_VERSION = 2
_WORTH_KEEPING = 10_000
"""Files from which on a listing goes to the user's folder for cache files. Fewer are listed as quickly as read."""

_RECENT_NS = 2_000_000_000
"""A directory that changed so shortly before it was listed may have changed again without another time: the clocks of
file systems tick slowly, some every two seconds."""

_MANY_DIRECTORIES = 64


@dataclass(frozen=True)
class Listing:
    """The files below a folder, in order."""

    paths: Packed
    """Below the folder, with slashes."""
    directories: Sequence[str]
    """Those that were looked at, empty ones included; the folder itself is the empty string."""
    counts: NDArray[np.int64]
    """Files in each directory itself; together they are all."""
    left_out: int
    """How many files there are that are not wanted."""

    def __len__(self) -> int:
        return len(self.paths)


def list_files(root: str, choice: Choice, cache: Cache) -> Listing:
    """Return the files below a folder, from the cache if no directory has changed since.

    Raises:
        SourceError: the folder is missing or cannot be read.
    """
    if not os.path.isdir(root):
        raise SourceError(
            f"{root} is {'not a folder' if os.path.lexists(root) else 'missing'}, so there are no files to list. Give "
            "the folder that the files are in, or a list of paths."
        )
    absolute = os.path.abspath(root)
    about = {"version": _VERSION, "root": absolute, "extensions": choice.extensions, "pattern": choice.pattern}
    file = CacheFile.at(cache, "listing", about)
    known = None if file is None else _from_cache(absolute, file.read())
    if known is not None:
        return known
    began_ns = time.time_ns()
    found = scan(absolute, choice)
    listing = _listing(found)
    if file is not None and (cache is not True or len(listing) >= _WORTH_KEEPING):
        file.write(_to_cache(listing, found, began_ns))
    return listing


def _listing(found: list[Directory]) -> Listing:
    paths = Packed(chain.from_iterable(directory.paths() for directory in found), is_text=True, is_encoded=True)
    counts = np.array([directory.count for directory in found], np.int64)
    left_out = sum(directory.left_out for directory in found)
    return Listing(paths, [directory.path for directory in found], counts, left_out)


def _to_cache(listing: Listing, found: list[Directory], began_ns: int) -> Any:
    return {
        "paths": listing.paths.arrays(),
        "directories": Packed(listing.directories, is_text=True).arrays(),
        "counts": listing.counts,
        "left_out": listing.left_out,
        "stamps": np.array([directory.stamp for directory in found], np.uint64),
        "began_ns": began_ns,
    }


def _from_cache(root: str, stored: Any) -> Listing | None:
    """Return a listing that was stored, None if there is none or a directory has changed."""
    if stored is None:
        return None
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
    return Listing(Packed.of_arrays(stored["paths"]), directories, stored["counts"], stored["left_out"])


def _stamps(paths: list[str]) -> list[tuple[int, int, int]]:
    if len(paths) < _MANY_DIRECTORIES:
        return [stamp_of(path) for path in paths]
    with ThreadPoolExecutor(8, thread_name_prefix="feedline-stat") as threads:
        parts = [paths[number::8] for number in range(8)]
        found = list(threads.map(lambda part: [stamp_of(path) for path in part], parts))
    return [found[number % 8][number // 8] for number in range(len(paths))]
