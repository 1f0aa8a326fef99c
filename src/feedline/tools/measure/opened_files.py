"""The files that a dataset opens. Nothing is patched.

Python reports `open` and `sqlite3.connect` to an audit hook. Files that libraries in C open show while they are open
(`/proc/self/fd`), where a function in Python gets their path (`reading.py`), and in the attributes of datasets.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.derived.formats import format_by_name, kind_of_file
from feedline.system.timing import Clock
from feedline.tools.measure.measured import Reopened
from feedline.tools.measure.noise import usual_s

_SYSTEM = ("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix)
"""Prefixes of paths that do not belong to the dataset."""
_OFTEN = 0.25
"""A file that at least this share of the samples opens is worth keeping open. A guess."""
_MOST_PATHS = 10_000
_MOST_REOPENED = 8
_WHOLE_BYTES = 1 << 26
"""No more of a file is read to see how long that takes."""


def file_at(value: object) -> str | None:
    """Return the absolute path of an existing regular file that a value names, unless it belongs to the system."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        return None
    try:
        path = os.path.abspath(os.fsdecode(value))
        return path if os.path.isfile(path) and not path.startswith(_SYSTEM) else None
    except (ValueError, OSError):  # a text that is no path
        return None


class OpenedFiles:
    """The files that this process opens: while the dataset is created, and for each sample.

    The hook stays for the rest of the process, which is short-lived: an audit hook cannot be removed.
    """

    def __init__(self) -> None:
        self.before: list[str] = []
        """Opened while the dataset and its first sample were made, in order."""
        self.by_samples: Counter[str] = Counter()
        """How many samples opened a file."""
        self.samples = -1
        """How many were counted."""
        self.read_bytes = 0
        """What a sample reads from all files."""
        self._now: dict[str, str] = {}
        self._how: dict[str, str] = {}
        self._read_before = 0
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "sqlite3.connect"):
            path = args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.abspath(os.fsdecode(path))
                if not name.startswith(_SYSTEM) and len(self._now) < _MOST_PATHS:
                    self._now[name] = event.partition(".")[0]

    def take(self) -> dict[str, str]:
        """Return what was opened since the last call, by path: by "open" or "sqlite3"."""
        taken, self._now = self._now, {}
        return taken

    def sample(self) -> None:
        """Note that a sample was made. What the first one opens counts as opened before, like its imports."""
        opened = self.take()
        self.samples += 1
        if not self.samples:
            self.before = list(opened)
            self._read_before = _bytes_read()
            return
        self.read_bytes = (_bytes_read() - self._read_before) // self.samples
        if len(self.by_samples) < _MOST_PATHS:
            self.by_samples.update(opened.keys())
            self._how.update(opened)

    def often(self) -> list[str]:
        """Return the files that many samples open, the most frequent first."""
        least = max(4, _OFTEN * self.samples)
        return [path for path, count in self.by_samples.most_common(_MOST_REOPENED) if count >= least]

    def reopened(self, by_c: Mapping[str, str], most_s: float, clock: Clock) -> tuple[Reopened, ...]:
        """Return the files that many samples open, and the time that each of them spends on it.

        Args:
            by_c: the library, by path, that opens a file in each sample although Python did not report it.
            most_s: the time of a sample that may be spent on files.
            clock: measures the times.
        """
        files = {path: self._how[path] for path in self.often() if os.path.isfile(path)}
        files.update((path, how) for path, how in by_c.items() if path not in files)
        is_whole = self.read_bytes >= sum(map(os.path.getsize, files))
        found = []
        for path, how in files.items():
            way = _way(path, how, is_whole=is_whole)
            samples = self.by_samples[path] or self.samples
            again_s = min(self._again_s(path, way, clock), most_s / len(files))
            found.append(Reopened(path, samples, self.read_bytes, way, again_s))
        return tuple(found)

    def _again_s(self, path: str, way: str, clock: Clock) -> float:
        """Return how long it takes to open and read a file once more than if it is kept."""
        try:
            return usual_s(lambda: WAYS[way](path), clock)
        except Exception:  # raised by any library: the file is gone, or cannot be read this way
            return 0.0


# Any: modules that the program has imported.
def _library(name: str) -> Any:
    return sys.modules[name]


def _connected(path: str) -> None:
    connection = _library("sqlite3").connect(path)
    connection.execute("SELECT count(*) FROM sqlite_master")
    connection.close()


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_WHOLE_BYTES)


def _lines(path: str) -> list[str]:
    with open(path) as file:
        return file.readlines(_WHOLE_BYTES)


WAYS: dict[str, Callable[[str], object]] = {
    "h5py": lambda path: _library("h5py").File(path, "r").close(),
    "sqlite3": _connected,
    "pyarrow": lambda path: _library("pyarrow.parquet").read_table(path),
    "npy": np.load,
    "json": lambda path: json.loads(Path(path).read_bytes()),
    "lines": _lines,
    "bytes": _content,
    "text part": lambda path: open(path).close(),
    "part": lambda path: open(path, "rb").close(),
}
"""What samples no longer do if the dataset keeps the file, by the way of keeping it."""


def _way(path: str, how: str, *, is_whole: bool) -> str:
    """Return the way to keep a file."""
    if how in WAYS:
        return how
    if path.endswith(".npy"):
        return "npy"
    is_text = format_by_name(path) in ("csv", "jsonl", "text") or kind_of_file(path).is_text
    if not is_whole:
        return "text part" if is_text else "part"
    is_small = os.path.getsize(path) <= _WHOLE_BYTES
    return "json" if path.endswith(".json") and is_small else "lines" if is_text else "bytes"


def held_open() -> Iterator[str]:
    """Yield the files that this process holds open, whatever has opened them."""
    for number in os.listdir("/proc/self/fd"):
        try:
            path = file_at(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one of the listing
            continue
        if path is not None:
            yield path


_MOST_LISTED = 8


def paths_in(dataset: object) -> Iterator[str]:
    """Yield the files that a dataset's attributes name: paths, and the first of a list of paths, alone or in tuples."""
    for value in list(getattr(dataset, "__dict__", {}).values()):
        some = [value]
        if isinstance(value, (list, tuple)):
            some = [one[0] if isinstance(one, (list, tuple)) and one else one for one in value[:_MOST_LISTED]]
        yield from filter(None, map(file_at, some))


def _bytes_read() -> int:
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return 0
