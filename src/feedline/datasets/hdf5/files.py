"""The files of a dataset that one process has open.

A file is opened when one of its rows is first read, and let go of when too many others were used since: it is closed
when the last thread that reads it is done. Before every batch it is asked for its size and the time of its last change:
one that was written to is opened anew, and refused if it is not the one any more that the dataset was made of. So a
mapped file is not read beyond an end that was cut off, which would end the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Any

from feedline.datasets.bounded_cache import BoundedCache
from feedline.datasets.form import fields_with_sums
from feedline.datasets.hdf5.checked import checked_rows
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
    stored_in,
)
from feedline.datasets.hdf5.rows import ChunkCache, Rows
from feedline.errors import CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.system.failures import words

_OPEN_AT_ONCE = 64
"""Files; each takes up to three descriptors. A guess: processes often have 1,024 for everything."""


class OpenFile:
    """One open file, and the rows of its fields."""

    _serials = itertools.count()

    def __init__(self, part: Part, fields: Sequence[Field], cache: ChunkCache, *, swmr: bool) -> None:
        self.part = part
        self.fields: list[Rows] = []
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
        with_sums = fields_with_sums(stored_in(self._file, path))
        try:
            for field in fields:
                dataset = dataset_of(self._file, field.name, path, external=self.part.external)
                own = dataset.file == self._file
                if not own:
                    self._note_linked(dataset, field)
                rows, uses_file = rows_of(dataset, field, mapped if own else None, cache, (serial, field.name))
                self.fields.append(checked_rows(rows, field, dataset, has_sums=own and field.name in with_sums))
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

    def close(self) -> None:
        """Close the file. What is mapped goes with the last rows."""
        self.fields = []
        self._file = None  # which closes it, also while the program ends
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class OpenFiles:
    """All files that a process has open. Threads may use it at the same time."""

    def __init__(self, parts: Parts, fields: Sequence[Field], cache_bytes: int, *, swmr: bool) -> None:
        self._parts = parts
        self._fields = fields
        self._swmr = swmr
        self._cache = ChunkCache(cache_bytes)
        self._files = BoundedCache[int, OpenFile](_OPEN_AT_ONCE)
        self._lock = threading.Lock()

    def get(self, number: int) -> OpenFile:
        """Return a file, which is opened unless it is open, and stays so for as long as somebody refers to it.

        Raises SourceError: it cannot be opened; SourceChanged: it is not the one any more that the dataset was made of.
        """
        with self._lock:
            file = self._files.get(number)
            if file is not None and file.is_stale:
                self._files.drop(number)
                file = None  # before it is opened anew: HDF5 goes on with what it knows of a file that is open
            if file is None:
                file = OpenFile(self._parts.parts[number], self._fields, self._cache, swmr=self._swmr)
                self._files.put(number, file)
            return file

    def close(self) -> None:
        """Close all files; those that a thread is reading are closed when it has done so."""
        self._files.clear()


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
