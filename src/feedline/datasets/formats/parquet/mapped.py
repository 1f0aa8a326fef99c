"""Memory-mapped Arrow files, and decoded row groups that are kept as such files."""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.paths import File
from feedline.datasets.framework.store import Entry
from feedline.errors import CorruptSource, SourceError
from feedline.system.failures import words

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from pyarrow import Buffer, ChunkedArray, RecordBatch, RecordBatchFileReader, Schema, Table

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end marker of a stream: without it, missing record batches would go unnoticed."""


@dataclass(frozen=True)
class Mapped:
    """A memory-mapped Arrow file, or a file that holds an Arrow stream.

    Arrow trusts the contents of a file: damaged offsets may point anywhere in memory. So no record batch is read before
    it was validated.
    """

    file: File
    schema: Schema
    addresses: tuple[int, int]
    """Start and end of the map."""
    count: int
    """Number of record batches."""
    reader: RecordBatchFileReader | None
    """Reads one record batch; only for files."""
    batches: list[RecordBatch] | None
    """All record batches; only for streams, which have no index."""
    validated: set[int] = field(default_factory=set)
    """Record batches that were fully validated."""

    @classmethod
    def of(cls, file: File) -> Mapped:
        """Map a file. Raises CorruptSource: it is empty, or the end is missing."""
        return cls.within(buffer_of(file), file)

    @classmethod
    def within(cls, buffer: Buffer, file: File) -> Mapped:
        """Open an Arrow file in mapped memory. Raises the same errors as `of`."""
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
        if opened.tell() != buffer.size:  # zeros instead of a length look like the end
            raise CorruptSource(
                f"{file.path!r} is damaged: a mark at byte {opened.tell()} says that the stream has ended, but the "
                f"file has {buffer.size} bytes. Make it anew, or leave it out."
            )
        return cls(file, stream.schema, addresses, len(batches), None, batches)

    def row_count(self, number: int) -> int:
        """Return how many rows a record batch has. Raises the same errors as `batch`."""
        batch = self._batch(number)
        batch.validate()  # checks that this many rows can be there; costs next to nothing
        count: int = batch.num_rows
        return count

    def batch(self, number: int, names: Sequence[str] | None = None) -> RecordBatch:
        """Return a record batch with these columns only; pass the same names each time.

        The first call validates the batch in full. Raises CorruptSource: a string in it is not UTF-8;
        pyarrow.ArrowInvalid: it is damaged.
        """
        batch = self._batch(number)
        batch = batch if names is None else batch.select(names)
        if number not in self.validated:
            validate(batch, self.file, number)
            self.validated.add(number)
        return batch

    def _batch(self, number: int) -> RecordBatch:
        if self.batches is not None:
            return self.batches[number]
        assert self.reader is not None  # as there are no batches
        return self.reader.get_batch(number)


def validate(table: Table | RecordBatch, file: File, number: int) -> None:
    """Fully validate a row group, given as a pyarrow table or record batch.

    Raises CorruptSource: a string in it is not UTF-8; pyarrow.ArrowInvalid: it is damaged.
    """
    try:
        table.validate(full=True)
    except ValueError as exc:  # ArrowInvalid
        if "UTF8" not in str(exc):
            raise
        file.check()  # a concurrent write is the better explanation
        name = next(
            name for name, column in zip(table.column_names, table.columns, strict=True) if not _is_valid(column)
        )
        raise CorruptSource(
            f"Column {name!r} in row group {number} of {file.path!r} is of strings, but not all of them are UTF-8: "
            f"{words(exc)}. Write it as a binary column, or leave it out with fields=. If it was right once, the file "
            "is damaged: make it anew."
        ) from exc


def _is_valid(column: ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except ValueError:
        return False
    return True


def buffer_of(file: File) -> Buffer:
    """Map a file and return its bytes as an Arrow buffer. Raises CorruptSource: the file is empty."""
    pa = pyarrow()
    if file.size == 0:
        raise CorruptSource(f"{file.path!r} is empty: not even a schema is in it. Make it anew, or leave it out.")
    with pa.memory_map(file.path) as opened:
        return opened.read_buffer()  # keeps the map alive; no file stays open


_SLOTS = 1 << 16
"""Entries remembered as checked. A guess; two that share a slot are checked again in turns."""


class MappedEntries:
    """Arrow files that feedline derived and keeps, which every process maps: entries of `framework/store.py`.

    Two processes that make the same entry at once write the same bytes twice. Mapped memory cannot be checked at each
    use, so checksums are verified when an entry is first mapped. Processes forked from one that has the dataset verify
    it once between them, others once each.
    """

    def __init__(self) -> None:
        self._checked = np.frombuffer(mmap.mmap(-1, 8 * _SLOTS), np.int64)
        """Entries whose checksums were verified by this process or one of its forked relatives."""

    def get(self, entry: Entry, make: Callable[[], Iterable[bytes]]) -> Mapped | None:
        """Map an entry; if it is missing or damaged, `make` returns its pieces. None if it cannot be kept."""
        return self._mapped(entry) or (self._mapped(entry) if entry.write(make()) else None)

    def _mapped(self, entry: Entry) -> Mapped | None:
        kept = entry.open()
        if kept is None:
            return None
        pa = pyarrow()
        try:
            found = os.fstat(kept.descriptor)
            file, key = File(str(entry.path), found.st_size, found.st_mtime_ns), _key(found)
            content = buffer_of(file)[: kept.size]
            was_checked = self._checked[key % _SLOTS] == key
            if not was_checked and not kept.is_intact(content):
                entry.warn_damaged()
                return None
            mapped = Mapped.within(content, file)
        except (CorruptSource, pa.ArrowException, OSError):
            return None
        finally:
            kept.close()
        mapped.validated.update(range(mapped.count))  # feedline wrote it, and its checksums are right
        self._checked[key % _SLOTS] = key
        return mapped

    def __reduce__(self) -> tuple[object, ...]:
        return MappedEntries, ()


def temporary(pieces: Iterable[bytes], name: str) -> Mapped:
    """Map an Arrow file that is kept for this process only. Raises SourceError: there is no room for it."""
    try:
        with tempfile.TemporaryFile() as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except SourceError:
        raise
    except OSError as exc:
        raise SourceError(
            f"There is no room in {tempfile.gettempdir()} for what {name!r} holds ({exc.strerror or exc}). Set cache= "
            "to a folder that has it."
        ) from exc
    return Mapped.within(pyarrow().py_buffer(content), File(name, len(content), 0))


def _key(file: os.stat_result) -> int:
    return hash((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)) or 1  # 0 is an empty slot


def file_of(schema: Schema, batches: Iterable[RecordBatch]) -> Iterator[bytes]:
    """Yield the pieces of an Arrow file."""
    pieces: list[bytes] = []

    class Pieces(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, piece: ReadableBuffer) -> int:
            pieces.append(bytes(piece))
            return len(pieces[-1])

    with pyarrow("pyarrow.ipc").new_file(Pieces(), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield from pieces
            pieces.clear()
    yield from pieces
