"""The files of a dataset that one process has open.

A file is opened when one of its rows is first read. It is evicted when too many other files were used since, and closed
when the last thread that reads it is done. Before every batch, its size and modification time are checked: a file that
was written to is reopened, and rejected if its samples no longer match the dataset. So a mapped file is never read past
a truncated end, which would kill the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedline.datasets.formats.hdf5.checked import checked_rows
from feedline.datasets.formats.hdf5.layout import rows_of
from feedline.datasets.formats.hdf5.part import (
    UNREADABLE,
    Field,
    Part,
    Parts,
    Stamp,
    dataset_of,
    field_of,
    open_file,
    stamp_of,
    stored_in,
)
from feedline.datasets.formats.hdf5.rows import ChunkCache, Rows
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import fields_with_sums
from feedline.errors import CorruptSource, FeedlineError, SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.handle import ClosedWhenDeleted

if TYPE_CHECKING:
    from h5py import Dataset, File

_OPEN_AT_ONCE = 64
"""Maximum number of open files. Each takes up to three descriptors, and processes often have 1,024 in all. A guess."""


class OpenFile(ClosedWhenDeleted):
    """One open file, and the rows of its fields."""

    _serials = itertools.count()

    def __init__(self, part: Part, fields: Sequence[Field], cache: ChunkCache, *, swmr: bool) -> None:
        self.part = part
        self.fields: list[Rows] = []
        self._swmr = swmr
        self._linked: dict[str, Stamp] = {}
        """Other files that fields are stored in, through external links, and their stamps."""
        self._file: File | None = None
        self._descriptor = -1
        try:
            self._descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise SourceError(f"{part.path} no longer exists.") from exc
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
            raise SourceChanged(
                f"{path} has changed since the dataset was created. Create the dataset again. To read a file while it "
                "grows, write it in SWMR mode and pass swmr=True."
            )
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
            raise CorruptSource(f"The contents of {path} cannot be read: {words(exc)}.") from exc
        if not in_use:
            self._file.close()
            self._file = None

    def _note_linked(self, dataset: Dataset, field: Field) -> None:
        """Check a field that lies in another file through an external link; the map of this file does not cover it."""
        path = dataset.file.filename
        self._linked[path] = stamp_of(os.stat(path))
        if self._swmr:
            return
        _compare(path, self.part.length, len(dataset), [field], [field_of(field.name, dataset, path)])

    def _mapped(self) -> mmap.mmap | None:
        try:
            return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None  # the file system has no mmap: HDF5 reads the file

    @property
    def is_stale(self) -> bool:
        """True if the file, or another file that one of its fields is stored in, was written to since it was opened."""
        if self._swmr:
            return False
        if stamp_of(os.fstat(self._descriptor)) != self._stamp:
            return True
        try:
            return any(stamp_of(os.stat(path)) != stamp for path, stamp in self._linked.items())
        except OSError:
            return True  # deleted: reopening it reports that

    def close(self) -> None:
        """Close the file. The map stays until the last rows that use it are gone."""
        self.fields = []
        self._file = None  # closes it, also during interpreter shutdown
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
        self._files = BoundedCache[int, OpenFile](_OPEN_AT_ONCE)
        self._lock = threading.Lock()

    def get(self, number: int) -> OpenFile:
        """Return a file, opening it if necessary. It stays open for as long as there are references to it.

        Raises SourceError if it cannot be opened, SourceChanged if its samples no longer match the dataset.
        """
        with self._lock:
            file = self._files.get(number)
            if file is not None and file.is_stale:
                self._files.drop(number)
                file = None  # before it is reopened: HDF5 would keep using its cached metadata of an open file
            if file is None:
                file = OpenFile(self._parts.parts[number], self._fields, self._cache, swmr=self._swmr)
                self._files.put(number, file)
            return file

    def close(self) -> None:
        """Close all files; a file that a thread is reading is closed when the thread is done."""
        self._files.clear()


def _compare(path: str, length: int, found: int, fields: Sequence[Field], found_fields: Sequence[Field]) -> None:
    if found != length:
        raise SourceChanged(_changed(path, f"it had {length} samples and now has {found}."))
    for before, after in zip(fields, found_fields, strict=True):
        if before != after:
            was = f"{before.name!r} was {before.describe()} and is now {after.describe()}."
            raise SourceChanged(_changed(path, was))


def _changed(path: str, what: str) -> str:
    return (
        f"{path} has changed since the dataset was created: {what} Create the dataset again. To read a file while it "
        "grows, write it in SWMR mode and pass swmr=True."
    )
