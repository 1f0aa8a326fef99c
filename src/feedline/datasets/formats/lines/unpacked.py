"""Unpacked copies of compressed files, kept on disk, for files whose units are too large to read a line from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing

from feedline.datasets.framework.file_index import entry_of
from feedline.datasets.framework.store import Cache, StoredFile
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import content_of
from feedline.errors import BadOption, SourceChanged, SourceError
from feedline.system.handle import ClosedWhenDeleted


class UnpackedBlob(ClosedWhenDeleted, Blob):
    """A compressed file as if it were not, read from an unpacked copy that is kept on disk.

    Args:
        open_blob: opens the compressed file.
        cache: where copies are kept.
        content_bytes: how much content it has.

    Raises:
        BadOption: nothing may be kept.
        SourceError: there is no room; also while reading: the copy is damaged, and cannot be made again.
        SourceChanged: while reading, in the same case: the file is another one now.
    """

    is_local = True

    def __init__(self, open_blob: Callable[[], Blob], cache: Cache, content_bytes: int) -> None:
        self._open_blob = open_blob
        self._content_bytes = content_bytes
        with closing(open_blob()) as blob:
            self.name, self.address = blob.name, blob.address
            self._version, self._stamp = (blob.size, blob.tag), blob.stamp
            entry = entry_of(blob, cache, "lines")
            if entry is None:
                raise BadOption(
                    f"{blob.name} is compressed as a whole, so that random access needs an unpacked copy of it on "
                    "disk, which cache=False forbids. Give cache= a folder, read .stream(), or compress the file in "
                    "small parts, as bgzip does."
                )
            self._entry = entry
            self._file = entry.open() or self._made(blob)
        self.size, self.tag = self._version  # of the file, whose index this belongs to

    @property
    def stamp(self) -> str:
        return self._stamp

    def _made(self, blob: Blob) -> StoredFile:
        folder = self._entry.path.parent
        while not folder.exists():
            folder = folder.parent
        has_room = shutil.disk_usage(folder).free > self._content_bytes + self._content_bytes // 100
        file = self._entry.open() if has_room and self._entry.write(iter(content_of(blob).take_some, b"")) else None
        blob.check()
        if file is None:
            raise SourceError(
                f"{blob.name} is compressed as a whole, and cannot be unpacked to {self._entry.path.parent}. Give "
                "cache= a folder with room for all of its content, or read .stream()."
            )
        return file

    def read(self, start: int, stop: int) -> bytes:
        data = self._file.read(start, stop)
        if data is None:
            data = self._read_again(start, stop)
        return data

    def _read_again(self, start: int, stop: int) -> bytes:
        """Read from a new copy, which may be that of another process."""
        file = self._entry.open()
        data = None if file is None else file.read(start, stop)
        if file is None or data is None:
            if file is not None:
                file.close()
                self._entry.warn_damaged()
            with closing(self._open_blob()) as blob:
                if (blob.size, blob.tag) != self._version:
                    raise SourceChanged(
                        f"{blob.name} has changed, and the unpacked copy of what it was is damaged. Create the dataset "
                        "again."
                    )
                file = self._made(blob)
            data = file.read(start, stop)
        before, self._file = self._file, file
        before.close()
        if data is None:
            raise SourceError(f"{self._entry.path} was just written, and cannot be read. Is the disk failing?")
        return data

    def close(self) -> None:
        self._file.close()

    def _needs_closing(self) -> bool:
        return "_file" in self.__dict__
