"""An Arrow file in memory."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.cache_file import check_own, refuse_foreign, write_whole
from feedline.datasets.parquet.values import pyarrow
from feedline.datasets.paths import File
from feedline.errors import CorruptSource, PerformanceWarning, warn_user
from feedline.system.failures import words

# Any, throughout: pyarrow has no types to check against.

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The mark at the end of a stream: without it, nobody could tell that record batches are missing."""


@dataclass(frozen=True)
class Mapped:
    """An Arrow file, or a stream in a file, that is mapped into memory.

    Arrow believes what a file says of itself: offsets may lead anywhere in memory. So nothing is read of a record batch
    that was not validated.
    """

    file: File
    schema: Any
    addresses: tuple[int, int]
    """Where it lies."""
    count: int
    """How many record batches it has."""
    reader: Any
    """Reads one, of a file."""
    batches: list[Any] | None
    """All of them, of a stream: it has no index."""
    validated: set[int] = field(default_factory=set)
    """Record batches that were validated in full."""

    @classmethod
    def of(cls, file: File) -> Mapped:
        """Map a file. Raises CorruptSource: it is empty, or the end is missing."""
        return cls.within(buffer_of(file), file)

    @classmethod
    def within(cls, buffer: Any, file: File) -> Mapped:
        """Take what stands in mapped memory of a file. Raises what `of` does."""
        pa = pyarrow()
        ipc = pyarrow("pyarrow.ipc")
        addresses = (buffer.address, buffer.address + buffer.size)
        if bytes(buffer[:6]) == b"ARROW1":
            reader = ipc.open_file(pa.BufferReader(buffer))
            return cls(file, reader.schema, addresses, reader.num_record_batches, reader, None)
        if bytes(buffer[-8:]) != _END:
            raise CorruptSource(
                f"{file.path!r} does not end as an Arrow file or stream does. It is cut off, still being written, or "
                "no such file: make it anew, or leave it out."
            )
        opened = pa.BufferReader(buffer)
        stream = ipc.open_stream(opened)
        batches = list(stream)
        if opened.tell() != buffer.size:  # zeros in the place of a length pass for the end
            raise CorruptSource(
                f"{file.path!r} is damaged: a mark at byte {opened.tell()} says that the stream has ended, but the "
                f"file has {buffer.size} bytes. Make it anew, or leave it out."
            )
        return cls(file, stream.schema, addresses, len(batches), None, batches)

    def row_count(self, number: int) -> int:
        """Return how many rows a record batch has. Raises what `batch` does."""
        batch = self._batch(number)
        batch.validate()  # whether that many rows can be there; it costs next to nothing
        count: int = batch.num_rows
        return count

    def batch(self, number: int, names: Sequence[str] | None = None) -> Any:
        """Return a record batch, with these columns only; the same ones each time.

        When it is asked for first, it is validated in full. Raises CorruptSource: a text in it is not UTF-8;
        pyarrow.ArrowInvalid: it is damaged.
        """
        batch = self._batch(number)
        batch = batch if names is None else batch.select(names)
        if number not in self.validated:
            validate(batch, self.file, number)
            self.validated.add(number)
        return batch

    def _batch(self, number: int) -> Any:
        return self.reader.get_batch(number) if self.batches is None else self.batches[number]


def validate(table: Any, file: File, number: int) -> None:
    """Look at all of a row group, a table or a record batch of pyarrow.

    Raises CorruptSource: a text in it is not UTF-8; pyarrow.ArrowInvalid: it is damaged.
    """
    try:
        table.validate(full=True)
    except ValueError as exc:  # ArrowInvalid
        if "UTF8" not in str(exc):
            raise
        file.check()  # somebody writing to it is the better explanation
        name = next(
            name for name, column in zip(table.column_names, table.columns, strict=True) if not _is_valid(column)
        )
        raise CorruptSource(
            f"Column {name!r} in row group {number} of {file.path!r} is of strings, but not all of them are UTF-8: "
            f"{words(exc)}. Write it as a binary column, or leave it out with fields=. If it was right once, the file "
            "is damaged: make it anew."
        ) from exc


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except ValueError:
        return False
    return True


def buffer_of(file: File) -> Any:
    """Map a file, and return its bytes as a buffer of Arrow's. Raises CorruptSource: there are none."""
    pa = pyarrow()
    if file.size == 0:
        raise CorruptSource(f"{file.path!r} is empty: not even a schema is in it. Make it anew, or leave it out.")
    with pa.memory_map(file.path) as opened:
        return opened.read_buffer()  # keeps the map, and no file is left open


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
    """Row groups that were decoded once, as Arrow files in a folder that every process maps.

    Two processes that write the same one at once write the same twice. Its place follows from path, size and time of
    change of its Parquet file and from the columns, so that a changed file is decoded anew. What was kept of it before
    is removed then.

    Behind what Arrow writes stands a checksum. It is compared when a row group is first read: all at once would take
    long. Processes that were forked from one that has the dataset do so once between them,
    others once each. What is damaged is decoded anew.

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
            sink = pyarrow().BufferOutputStream()
            with pyarrow("pyarrow.ipc").new_file(sink, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            content = sink.getvalue()
            write_whole(path, content, _TAIL + zlib.crc32(content).to_bytes(4, "little"))
        except OSError as exc:
            self._cannot_write = True
            warn_user(
                f"Row groups cannot be unpacked to {str(self.folder)!r} ({exc.strerror or exc}), so that each process "
                "decodes them for itself, again and again. Give cache= a folder that can be written to, with room "
                "for all of the columns as they are in memory.",
                PerformanceWarning,
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


def _digest(*about: object) -> str:
    return hashlib.blake2b(repr(about).encode(), digest_size=6).hexdigest()


def _family(file: File) -> str:
    """Return how the names of all folders for a Parquet file begin."""
    return f"{Path(file.path).stem}-{_digest(file.identity)}-"


def _name(file: File, names: Sequence[str]) -> str:
    return f"{_family(file)}{_digest(file.size, file.tag)}-{_digest(sorted(names))}"


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
        current = f"{_family(file)}{_digest(file.size, file.tag)}-"
        for other in place.parent.iterdir():
            if other.name.startswith(_family(file)) and not other.name.startswith(current):
                shutil.rmtree(other, ignore_errors=True)
    for part in place.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if time.time() - part.stat().st_mtime > _FORGOTTEN_S:
                part.unlink()
