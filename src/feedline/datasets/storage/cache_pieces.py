"""The pieces in the folder of a disk cache, and which of them go when there are too many."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.storage.foresight import NAME_LENGTH, Foresight

_ABANDONED_S = 3600.0
"""An unfinished file of this age was abandoned."""
_UNUSED_S = 3600.0
"""A piece of another dataset that was not read for this long is not needed any more. A guess."""
_NAME = re.compile(r"(?P<begun>\.)?[0-9a-f]{32}-\d+(?(begun)\..*)")
"""Names of pieces and of unfinished files. Other files are the user's, and are left alone."""
_OUTDATED = -2

Places = NDArray[np.int64]


def place_of(name: str, foresight: Foresight) -> int:
    """Return the place of a piece in a foresight, by the name of its file; -1 if it is unknown there."""
    return foresight.place_of(name[:NAME_LENGTH], int(name.rpartition("-")[2]))


class Pieces:
    """The pieces in a folder, as they were when it was scanned. Scanning also deletes abandoned files."""

    def __init__(self, folder: Path) -> None:
        began_s = time.monotonic()
        found = list[tuple[str, int, float]]()
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    name, status = _NAME.fullmatch(entry.name), entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        continue
                    if name and not name["begun"]:
                        found.append((entry.path, status.st_size, status.st_mtime))
                    elif name and status.st_mtime < time.time() - _ABANDONED_S:
                        os.unlink(entry.path)
        self.paths = [path for path, _, _ in found]
        self.sizes = np.array([size for _, size, _ in found], np.int64)
        self.used_s = np.array([used_s for _, _, used_s in found], np.float64)
        """When each was last read."""
        self.at_s = time.monotonic()
        """When the folder was scanned."""
        self.took_s = self.at_s - began_s
        """How long that took."""
        self._places: dict[Foresight, Places] = {}

    def at(self, path: Path) -> Places:
        """Return where a piece is among these: one number, or none."""
        return np.array([self.paths.index(str(path))] if str(path) in self.paths else [], np.int64)

    def add(self, path: str, size: int) -> None:
        """Add a new piece."""
        self.paths.append(path)
        self.sizes, self.used_s = np.append(self.sizes, size), np.append(self.used_s, time.time())
        for foresight, places in self._places.items():
            self._places[foresight] = np.append(places, place_of(os.path.basename(path), foresight))

    def leave_out(self, chosen: Places) -> None:
        """Forget some pieces."""
        is_kept = np.ones(len(self.paths), bool)
        is_kept[chosen] = False
        self.paths = [self.paths[place] for place in np.flatnonzero(is_kept).tolist()]
        self.sizes, self.used_s = self.sizes[is_kept], self.used_s[is_kept]
        self._places = {foresight: places[is_kept] for foresight, places in self._places.items()}

    def delete(self, chosen: Places) -> int:
        """Delete some pieces; return their bytes, without those that another process has deleted."""
        freed = sum(_deleted(self.paths[place]) for place in chosen.tolist())
        self.leave_out(chosen)
        return freed

    def times(self, foresight: Foresight, versions: Mapping[str, str]) -> NDArray[np.float64]:
        """Return when each piece is needed next, given the current versions of blobs."""
        places = self._places_in(foresight, versions)
        others = np.where(self.are_useless(foresight, versions), math.inf, -math.inf)
        return np.where(places >= 0, foresight.times()[np.maximum(places, 0)], others)

    def are_useless(self, foresight: Foresight, versions: Mapping[str, str]) -> NDArray[np.bool_]:
        """Return for each piece whether its blob has changed, or nobody uses its dataset any more."""
        places = self._places_in(foresight, versions)
        found: NDArray[np.bool_] = (places == _OUTDATED) | ((places < 0) & (self.used_s < time.time() - _UNUSED_S))
        return found

    def _places_in(self, foresight: Foresight, versions: Mapping[str, str]) -> Places:
        """Return the place of each piece in a foresight: -1 for other datasets, `_OUTDATED` for other versions."""
        if foresight not in self._places:
            began_s = time.monotonic()
            names = list(map(os.path.basename, self.paths))
            found = [_OUTDATED if _is_outdated(name, versions) else place_of(name, foresight) for name in names]
            self._places[foresight] = np.array(found, np.int64)
            self.took_s += time.monotonic() - began_s
        return self._places[foresight]


def _is_outdated(name: str, versions: Mapping[str, str]) -> bool:
    version = name[NAME_LENGTH : 2 * NAME_LENGTH]
    return versions.get(name[:NAME_LENGTH], version) != version


def _deleted(path: str) -> int:
    """Delete a piece; return its bytes, 0 if another process has deleted it."""
    try:
        size = os.lstat(path).st_size
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
