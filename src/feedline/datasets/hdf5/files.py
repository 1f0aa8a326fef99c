"""The files of a dataset that one process has open.

A file is opened when one of its rows is first read, and closed when too many others were used since, unless a thread is
still reading it. Before every batch it is asked for its size and the time of its last change: one that was written to
is opened anew, and refused if it is not the one any more that the dataset was made of. So a mapped file is not read
beyond an end that was cut off, which would end the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from feedline.datasets.bounded_cache import BoundedCache
from feedline.datasets.hdf5.layout import rows_of
from feedline.datasets.hdf5.part import (
    UNREADABLE,
    Field,
    Part,
    Parts,
    Stamp,
    dataset_of,
    field_of,
    look,
    open_file,
    stamp_of,
)
from feedline.datasets.hdf5.rows import ChunkCache, Rows, ValueRows
from feedline.errors import CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.failures import words

_OPEN_AT_ONCE = 64
"""Files; each takes up to three descriptors. A guess: processes often have 1,024 for everything."""


class OpenFile:
    """One open file, and the rows of its fields."""

    _serials = itertools.count()

    def __init__(self, part: Part, fields: Sequence[Field], cache: ChunkCache, *, swmr: bool) -> None:
        self.part = part
        self.fields: list[Rows | ValueRows] = []
        self.users = 0
        self._swmr = swmr
        self._linked: dict[str, Stamp] = {}
        """Other files that fields lie in, by external links, and their stamps."""
        # Any: h5py has no type annotations.
        self._file: Any = None
        self._descriptor = -1
        try:
            self._descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise SourceError(f"There is no file {part.path} any more.") from exc
        except OSError as exc:
            raise SourceError(f"{part.path} cannot be opened: {words(exc)}.") from exc
        try:
            self._open(fields, cache)
        except BaseException:
            self.close()
            raise

    def _open(self, fields: Sequence[Field], cache: ChunkCache) -> None:
        path = self.part.path
        self._stamp = stamp_of(os.fstat(self._descriptor))
        if self._stamp != self.part.stamp and not self._swmr:
            check_same(self.part, fields)
        self._file = open_file(path, swmr=self._swmr)
        if os.stat(path).st_ino != self._stamp[2]:
            raise SourceChanged(f"{path} was replaced while it was being opened. Try again.")
        mapped = None if self._swmr else self._mapped()
        serial = next(self._serials)
        in_use = False
        try:
            for field in fields:
                dataset = dataset_of(self._file, field.name, path, external=self.part.external)
                own = dataset.file == self._file
                if not own:
                    self._note_linked(dataset, field)
                rows, uses_file = rows_of(dataset, field, mapped if own else None, cache, (serial, field.name))
                self.fields.append(rows)
                in_use |= uses_file
        except FeedlineError:
            raise
        except UNREADABLE as exc:
            raise CorruptSource(f"What is in {path} cannot be made out: {words(exc)}.") from exc
        if not in_use:
            self._file.close()
            self._file = None

    # Any: h5py has no type annotations.
    def _note_linked(self, dataset: Any, field: Field) -> None:
        """Look at a field that lies in another file, by an external link: what is mapped is not that one."""
        path = dataset.file.filename
        self._linked[path] = stamp_of(os.stat(path))
        if self._swmr:
            return
        _compare(path, self.part.length, len(dataset), [field], [field_of(field.name, dataset, path)])

    def _mapped(self) -> mmap.mmap | None:
        try:
            return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None  # a file system that cannot: HDF5 reads it

    @property
    def is_stale(self) -> bool:
        """True if the file, or one that a field of it lies in, was written to since it was opened."""
        if self._swmr:
            return False
        if stamp_of(os.fstat(self._descriptor)) != self._stamp:
            return True
        try:
            return any(stamp_of(os.stat(path)) != stamp for path, stamp in self._linked.items())
        except OSError:
            return True  # it is gone: opening says so

    def __del__(self) -> None:
        # A dataset that is never closed, only forgotten: h5py closes its file by itself.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def close(self) -> None:
        """Close the file. What is mapped goes with the last rows."""
        self.fields = []
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OpenFiles:
    """All files that a process has open. Threads may use it at the same time."""

    def __init__(self, parts: Parts, fields: Sequence[Field], cache_bytes: int, *, swmr: bool) -> None:
        self._parts = parts
        self._fields = fields
        self._swmr = swmr
        self._cache = ChunkCache(cache_bytes)
        self._files = BoundedCache[int, OpenFile](_OPEN_AT_ONCE, _close_unused)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False

    @contextmanager
    def use(self, number: int) -> Iterator[OpenFile]:
        """Open a file unless it is open, and keep it open for as long as this lasts.

        Raises SourceError: it cannot be opened; SourceChanged: it is not the one any more that the dataset was made of.
        """
        with self._lock:
            file = self._files.get(number)
            if file is not None and file.is_stale:
                self._files.drop(number)
                file = None
            if file is None:
                file = OpenFile(self._parts.parts[number], self._fields, self._cache, swmr=self._swmr)
                self._files.put(number, file)
            file.users += 1
        try:
            yield file
        finally:
            with self._lock:
                file.users -= 1
                if file.users == 0 and self._files.get(number) is not file:
                    file.close()
                elif file.users == 0 and self._is_closed:  # it was opened by a thread that came too late
                    self._files.drop(number)

    def close(self) -> None:
        """Close all files; those that a thread is reading are closed when it has done so. There is no way back."""
        if self._pid != os.getpid():  # inherited: the lock may be held for good, and nobody reads
            for file in self._files.values():
                file.close()
            return
        with self._lock:
            self._is_closed = True
            self._files.clear()


def _close_unused(file: OpenFile) -> None:
    if file.users == 0:  # else the last user closes it
        file.close()


def check_same(part: Part, fields: Sequence[Field]) -> None:
    """Look at a file that was written to. Raises SourceChanged: it has other samples than the dataset was made of."""
    names = tuple(field.name for field in fields)
    try:
        found, _, found_fields = look(part.path, names, swmr=False, external=part.external)
    except ValueError as exc:  # BadOption: there is no such field any more
        raise SourceChanged(_changed(part.path, str(exc))) from exc
    _compare(part.path, part.length, found.length, fields, found_fields)


def _compare(path: str, length: int, found: int, fields: Sequence[Field], found_fields: Sequence[Field]) -> None:
    if found != length:
        raise SourceChanged(_changed(path, f"it had {length} samples, and has {found} now."))
    for before, after in zip(fields, found_fields, strict=True):
        if before != after:
            was = f"{before.name!r} was {before.describe()}, and is {after.describe()} now."
            raise SourceChanged(_changed(path, was))


def _changed(path: str, what: str) -> str:
    return (
        f"{path} was changed since the dataset was made: {what} Make the dataset anew. A file that grows while it is "
        "read has to be written in SWMR mode and read with swmr=True."
    )
