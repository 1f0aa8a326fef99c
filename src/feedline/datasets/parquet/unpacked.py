"""Row groups that were decoded once, as Arrow files in a folder that every process maps.

A row group is written under another name and then renamed, so that nobody maps half of one; two processes that write
the same one at once write the same twice. Its place follows from path, size and time of change of its Parquet file and
from the columns, so that a changed file is decoded anew. What was kept of it before is removed then.

Behind what Arrow writes stands a checksum. It is compared when a row group is first read; when the folder is opened,
all of it would have to be read. Processes that were forked from one that has the dataset do so once between them,
others once each. What is damaged is decoded anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.cache_file import check_own, refuse_foreign, write_whole
from feedline.datasets.parquet.mapped import Mapped, buffer_of
from feedline.datasets.parquet.values import pyarrow
from feedline.datasets.paths import File
from feedline.errors import CorruptSource, FeedlineWarning, tell

_MARK = "unpacked.feedline"
"""A file that says whose folder it is."""

_FORGOTTEN_S = 3600.0
"""A file that nobody has finished after so long was left by a process that died. A guess."""

_TAIL = b"feedline"
"""What stands behind the bytes of Arrow's, and before their CRC-32."""
_TAIL_BYTES = len(_TAIL) + 4

_SLOTS = 1 << 16
"""Files that are remembered as checked. A guess; should two share a slot, they are checked again in turns."""

# Any, throughout: pyarrow has no types to check against.


class Unpacked:
    """The folder.

    Raises BadOption: it belongs to another user.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        refuse_foreign(folder)
        self.folder = Path(folder)
        self._cannot_write = False
        self._checked = np.frombuffer(mmap.mmap(-1, 8 * _SLOTS), np.int64)
        """Files that were compared with their checksums, by this process or one of its forked relatives."""

    def columns(
        self, file: File, number: int, names: Sequence[str], decode: Callable[[], Any]
    ) -> tuple[list[Any], tuple[int, int]]:
        """Return columns of a row group, and between which addresses they are mapped."""
        place = self.folder / _name(file, names)
        path = place / f"{number}.arrow"
        mapped = self._mapped(path)
        if mapped is None:
            table = decode()
            if not self._write(table, place, path, file):
                return [table.column(name) for name in names], (0, 0)
            mapped = self._mapped(path)
            if mapped is None:
                raise CorruptSource(
                    f"{str(path)!r} was just written, and cannot be read. Is the disk of cache= damaged?"
                )
        batches = [mapped.batch(batch) for batch in range(mapped.count)]
        table = pyarrow().Table.from_batches(batches, mapped.schema)
        return [table.column(name) for name in names], mapped.addresses

    def _write(self, table: Any, place: Path, path: Path, file: File) -> bool:
        """Write a row group; return False if that cannot be done, which is told once."""
        if self._cannot_write:
            return False
        try:
            _make(place, file)
            content = _arrow_file(table)
            write_whole(path, content, _TAIL + zlib.crc32(content).to_bytes(4, "little"))
        except OSError as exc:
            self._cannot_write = True
            tell(
                f"Row groups cannot be unpacked to {str(self.folder)!r} ({exc.strerror or exc}), so that each process "
                "decodes them for itself, again and again. Give cache= a folder that can be written to, with room "
                "for all of the columns as they are in memory.",
                FeedlineWarning,
            )
            return False
        return True

    def _mapped(self, path: Path) -> Mapped | None:
        """Map a row group that is kept; None if it is not, or is damaged."""
        pa = pyarrow()
        try:
            found = path.stat()
            buffer = buffer_of(File(str(path), found.st_size, found.st_mtime_ns))
            mapped = Mapped.within(buffer[:-_TAIL_BYTES], File(str(path), found.st_size, found.st_mtime_ns))
            key = _key(found)
            if self._checked[key % _SLOTS] == key:
                mapped.validated.update(range(mapped.count))
            elif bytes(buffer[-_TAIL_BYTES:]) != _TAIL + zlib.crc32(buffer[:-_TAIL_BYTES]).to_bytes(4, "little"):
                return None
            for batch in range(mapped.count):
                mapped.batch(batch)
        except (CorruptSource, pa.ArrowException, OSError):
            return None
        self._checked[key % _SLOTS] = key
        return mapped

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _key(file: os.stat_result) -> int:
    return hash((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)) or 1  # 0 is an empty slot


def _arrow_file(table: Any) -> Any:
    """Return a table as an Arrow file, in a buffer."""
    pa = pyarrow()
    sink = pa.BufferOutputStream()
    with pyarrow("pyarrow.ipc").new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def _digest(*about: object) -> str:
    return hashlib.blake2b(repr(about).encode(), digest_size=6).hexdigest()


def _family(file: File) -> str:
    """Return how the names of all folders for a Parquet file begin."""
    return f"{Path(file.path).stem}-{_digest(os.path.abspath(file.path))}-"


def _name(file: File, names: Sequence[str]) -> str:
    return f"{_family(file)}{_digest(file.size, file.changed_ns)}-{_digest(sorted(names))}"


def _make(place: Path, file: File) -> None:
    """Make the folder for a Parquet file; remove what was kept of it before it changed, and what was never finished."""
    check_own(place.parent, _MARK)
    place.parent.mkdir(parents=True, exist_ok=True)
    (place.parent / _MARK).touch()
    try:
        place.mkdir(parents=True)
    except FileExistsError:
        pass
    else:
        current = f"{_family(file)}{_digest(file.size, file.changed_ns)}-"
        for other in place.parent.iterdir():
            if other.name.startswith(_family(file)) and not other.name.startswith(current):
                shutil.rmtree(other, ignore_errors=True)
    for part in place.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if time.time() - part.stat().st_mtime > _FORGOTTEN_S:
                part.unlink()
