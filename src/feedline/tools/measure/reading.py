"""How much of a sample's time is reading: a few samples are made again, and followed line by line.

Two things count as reading: a line of the user's code that opens one of the files that many samples open, or that runs
while such a file is open; and a call of a library that reads tables. Python's own hook for debuggers (`sys.settrace`)
shows both, so nothing is patched; the hook that was set before is set again.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

import feedline.datasets
from feedline.system.sizes import bytes_text
from feedline.tools.measure.measured import LEAST_SAMPLES
from feedline.tools.measure.opened_files import OpenedFiles, file_at

TABLES = ("pandas", "h5py", "pyarrow", "polars")
"""Libraries that read rows."""
_IMAGES = "PIL"
_OURS = "feedline"
_FOLLOWED_S = 0.5
_MOST_EVENTS = 50_000
"""A sample that calls or runs more lines is not followed to its end: that would take seconds."""

# Any, throughout: the arguments of other libraries' functions.
_Trace = Callable[[FrameType, str, Any], Any]


class Chunk(NamedTuple):
    """A chunk of a stored HDF5 dataset."""

    bytes: int
    words: str
    """Its shape, size and compression, if a row unpacks more rows; else empty."""


def follow(ask: Callable[[Any], object], indices: list[Any], opened: OpenedFiles) -> Followed:
    """Make a few samples again and return what they did; `opened` notes what they open."""
    found = Followed(opened)
    rests: list[float] = []
    until_s = time.monotonic() + _FOLLOWED_S
    for index in indices[:LEAST_SAMPLES]:
        if rests and time.monotonic() > until_s:
            break
        try:
            rests.append(found.rest_of(partial(ask, index)))
        except Exception:  # it could be made before
            return Followed(opened)
        if found.is_lost:
            return Followed(opened)
    found.samples, found.remains_s = len(rests), float(np.median(rests)) if rests else 0.0
    return found


class Followed:
    """What a few samples did."""

    def __init__(self, opened: OpenedFiles) -> None:
        self.samples = 0
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        """The time of all of them, by what reads: a library, or the path of a file."""
        self.remains_s = 0.0
        """The time of a median sample beside that. Following it takes time, too, so this is rather too long."""
        self.paths: Counter[str] = Counter()
        """How many samples passed the path of a file to a function."""
        self.hdf5: dict[tuple[str, str], Chunk] = {}
        """The HDF5 datasets that were read, by file and name."""
        self.kept = 1.0
        """The smallest share of an image that Pillow has kept of it in a crop."""
        self.is_lost = False
        """True if a sample was not followed to its end."""
        self._opened = opened
        self._files = frozenset(opened.often())
        modules = ((name, sys.modules.get(name)) for name in (*TABLES, "json", _IMAGES))
        folders = {name: os.path.dirname(str(module.__file__)) for name, module in modules if module is not None}
        folders[_OURS] = os.path.dirname(os.path.dirname(str(feedline.datasets.__file__)))
        self._folders = {name: folder + os.sep for name, folder in folders.items()}
        paths = sysconfig.get_paths()
        self._others = tuple(paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
        self._kinds: dict[CodeType, str | None] = {}
        self._fds: dict[int, str] = {}
        """Files that are open now, of those that many samples open."""
        self._since_s = self._entered_s = self._library_s = self._rest_s = 0.0
        self._events = 0
        self._inside: str | None = None
        self._given: set[str] = set()
        """Paths that functions were given."""
        self._last: str | None = None
        """The file that was opened last."""

    @property
    def reader(self) -> str:
        """What read the longest: a library, or a path; empty if nothing did."""
        return max(self.spent_s, key=self.spent_s.__getitem__, default="")

    def rest_of(self, make: Callable[[], object]) -> float:
        """Make a sample, and return its time beside reading."""
        self._events, self._rest_s, self._inside, self._given, self._last = 0, 0.0, None, set(), None
        self._opened.take()
        before = sys.gettrace()
        self._since_s = time.perf_counter()
        sys.settrace(self._call)
        try:
            make()
        finally:
            sys.settrace(before)
            self._mark(is_end=True)
        self.paths.update(self._given)
        return self._rest_s

    def _kind(self, code: CodeType) -> str | None:
        """Return the library of some code; an empty text for the user's own, None for the rest."""
        if code not in self._kinds:
            path = code.co_filename
            library = next((name for name, folder in self._folders.items() if path.startswith(folder)), None)
            is_other = path.startswith((*self._others, "<frozen"))
            self._kinds[code] = library or (None if is_other else "")
            if path.startswith(os.path.dirname(__file__)):
                self._kinds[code] = None  # what makes the samples
        return self._kinds[code]

    def _call(self, frame: FrameType, event: str, _: Any) -> _Trace | None:
        if self._inside is not None or self._is_too_much():
            return None
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return None  # its time is that of the line which asks for the next value
        began_s, kind = time.perf_counter(), self._kind(frame.f_code)
        if kind == "":
            self._mark()
        if kind is not None:
            self._look(frame, kind)
        self._entered_s = time.perf_counter()
        self._since_s += self._entered_s - began_s  # this function's own time
        if not kind:
            return None if kind is None else self._line
        self._inside = kind
        frame.f_trace_lines = False
        return self._left

    def _left(self, frame: FrameType, event: str, _: Any) -> _Trace:
        if event == "return" and self._inside is not None:
            seconds = time.perf_counter() - self._entered_s
            if self._inside != _OURS:
                self.spent_s[self._inside] += seconds
                self._library_s += seconds
            self._inside = None
        return self._left

    def _line(self, frame: FrameType, event: str, _: Any) -> _Trace:
        if event in ("line", "return") and not self._is_too_much():
            self._mark()
        return self._line

    def _is_too_much(self) -> bool:
        self._events += 1
        if self._events > _MOST_EVENTS:
            self.is_lost = True
            sys.settrace(None)
        return self.is_lost

    def _mark(self, *, is_end: bool = False) -> None:
        """Account for the time since the last line of the user's code; at the end, for freeing what was read."""
        own_s = max(0.0, time.perf_counter() - self._since_s - self._library_s)
        now_opened = [path for path in self._opened.take() if path in self._files]
        if now_opened:
            self._last = now_opened[-1]
        path = next(iter([*self._fds.values(), *now_opened]), self._last if is_end else None)
        if path is None:
            self._rest_s += own_s
        else:
            self.spent_s[path] += own_s
        if self._fds or now_opened:
            self._fds = self._still_open(now_opened)
        self._library_s = 0.0
        self._since_s = time.perf_counter()

    def _still_open(self, now_opened: list[str]) -> dict[int, str]:
        wanted = {os.path.realpath(path): path for path in (*self._fds.values(), *now_opened)}
        found = {}
        for number in map(int, os.listdir("/proc/self/fd")) if now_opened else self._fds:
            try:
                place = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # closed
                continue
            if place in wanted:
                found[number] = wanted[place]
        return found

    def _look(self, frame: FrameType, kind: str) -> None:
        """Note the paths that a function was given, the HDF5 dataset that it reads, and the part of an image."""
        code, values = frame.f_code, frame.f_locals
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            path = file_at(values.get(name))
            if path is not None:
                self._given.add(path)
        me: Any = values.get("self")
        if kind == "h5py" and code.co_name == "__getitem__" and hasattr(me, "chunks") and me.shape:
            self.hdf5[str(me.file.filename), str(me.name).lstrip("/")] = _chunk_of(me)
        elif kind == _IMAGES and code.co_name in ("crop", "resize") and values.get("box") is not None:
            left, top, right, bottom = values["box"]
            share = (right - left) * (bottom - top) / max(me.width * me.height, 1)
            self.kept = min(self.kept, share) if share > 0 else self.kept


def _chunk_of(dataset: Any) -> Chunk:
    shape = tuple(dataset.chunks or ())
    size = math.prod(shape) * dataset.dtype.itemsize if shape else 0
    if not dataset.compression or shape[0] == 1:
        return Chunk(size, "")
    name, sides = str(dataset.name).lstrip("/"), " x ".join(map(str, shape))
    return Chunk(size, f"those of {name!r} have the shape {sides} ({bytes_text(size)}, {dataset.compression})")
