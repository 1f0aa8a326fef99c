"""The files that a dataset opens. Nothing is patched.

Python reports `open` and `sqlite3.connect` to an audit hook. Files that libraries in C open show where a function in
Python gets their path (`reading.py`), and in the attributes of datasets.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feedline.datasets.derived.formats import format_by_content, format_by_name, kind_of_file
from feedline.system.timing import Clock
from feedline.tools.measure.measured import Reopened
from feedline.tools.measure.noise import usual_s

_SYSTEM = ("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix)
"""Prefixes of paths that do not belong to the dataset."""
_OFTEN = 0.25
"""A file that at least this share of the samples opens is worth keeping open. A guess."""
_MOST_PATHS = 10_000
_MOST_REOPENED = 8
_MOST_LISTED = 8
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


def format_of(path: str) -> str | None:
    """Return the format of a file, a key of `READABLE`; None for any other file."""
    return format_by_name(path) or format_by_content(path)


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
        self._now: dict[str, None] = {}
        self._read_before = self._read_bytes = 0
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "sqlite3.connect") and isinstance(args[0], (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(args[0]))
            if not path.startswith(_SYSTEM) and len(self._now) < _MOST_PATHS:
                self._now[path] = None

    def take(self) -> list[str]:
        """Return what was opened since the last call."""
        taken, self._now = list(self._now), {}
        return taken

    def sample(self) -> None:
        """Note that a sample was made. What the first one opens counts as opened before, like its imports."""
        opened = self.take()
        self.samples += 1
        if not self.samples:
            self.before, self._read_before = opened, _bytes_read()
            return
        self._read_bytes = (_bytes_read() - self._read_before) // self.samples
        if len(self.by_samples) < _MOST_PATHS:
            self.by_samples.update(opened)

    def often(self) -> list[str]:
        """Return the files that many samples open, the most frequent first."""
        least = max(4, _OFTEN * self.samples)
        return [path for path, count in self.by_samples.most_common(_MOST_REOPENED) if count >= least]

    def reopened(self, most_s: float, clock: Clock) -> tuple[Reopened, ...]:
        """Return the files that many samples open; a sample spends at most `most_s` on them."""
        files = list(filter(os.path.isfile, self.often()))
        is_whole = self._read_bytes >= sum(map(os.path.getsize, files))
        found = []
        for path in files:
            way = _way(path, is_whole=is_whole)
            try:
                again_s = min(usual_s(lambda: way.again(path), clock), most_s / len(files))  # noqa: B023  # called here
            except Exception:  # raised by any library: the file is gone, or cannot be read this way
                again_s = 0.0
            found.append(
                Reopened(path, self.by_samples[path], self._read_bytes, again_s, bool(way.reading), *way.kept(path))
            )
        return tuple(found)


class _Way(NamedTuple):
    """A way to keep a file."""

    # object: what a sample no longer makes.
    again: Callable[[str], object]
    """What samples no longer do with its path."""
    name: str
    """What to call what is kept."""
    opening: str
    """How to open the file."""
    reading: str = ""
    """How to read it before the workers start; empty if each opens it when it is first used."""
    note: str = ""
    """How to use what is kept."""
    fix: str = "Open it once in each worker, when it is first used, and keep it open."

    def kept(self, path: str) -> tuple[str, str]:
        """Return the fix for a file that is opened repeatedly, as a sentence and as code."""
        opening = self.opening.format(repr(path))
        if self.reading:
            return self.fix, (
                f"# in __init__:\nwith {opening} as file:\n    self.{self.name} = {self.reading}\n"
                f"# in __getitem__, instead of opening and reading the file{self.note}:\n{self.name} = self.{self.name}"
            )
        return self.fix, (
            f"# in __init__:\nself.{self.name} = None\n"
            f"# in __getitem__:\nif self.{self.name} is None:\n    self.{self.name} = {opening}\n"
            f"# and instead of opening the file, without closing it:\n{self.name} = self.{self.name}{self.note}"
        )


def _connected(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM sqlite_master")
    connection.close()


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_WHOLE_BYTES)


def _lines(path: str) -> list[str]:
    with open(path) as file:
        return file.readlines(_WHOLE_BYTES)


_SHARED = "Read the file once and share its content between all workers."
_WAYS = {
    "sqlite": _Way(_connected, "file", "sqlite3.connect({})"),
    "npy": _Way(
        np.load, "rows", "np.load({}, mmap_mode='c')",
        fix="Map the array on first use: rows are then read from the file as they are needed.",
    ),
    "json": _Way(
        lambda path: json.loads(Path(path).read_bytes()), "items", "open({})", "feedline.share(json.load(file))",
        fix=_SHARED,
    ),
    "lines": _Way(_lines, "lines", "open({})", "feedline.share(file.readlines())", fix=_SHARED),
    "bytes": _Way(
        _content, "content", "open({}, 'rb')", "file.read()", " (as a file: io.BytesIO(content))",
        "Read the file once and keep its content; better still, keep the parsed result.",
    ),
    "part of a text": _Way(lambda path: open(path).close(), "file", "open({})", note="\nfile.seek(0)"),
    "part": _Way(lambda path: open(path, "rb").close(), "file", "open({}, 'rb')", note="\nfile.seek(0)"),
}  # fmt: skip


def _way(path: str, *, is_whole: bool) -> _Way:
    """Return the way to keep a file; `is_whole` is True if samples read all of it."""
    found = format_of(path)
    if found in ("sqlite", "npy"):
        return _WAYS[found]
    is_text = found in ("csv", "jsonl", "text") or kind_of_file(path).is_text
    if not is_whole:
        return _WAYS["part of a text" if is_text else "part"]
    if path.endswith(".json") and os.path.getsize(path) <= _WHOLE_BYTES:
        return _WAYS["json"]
    return _WAYS["lines" if is_text else "bytes"]


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
