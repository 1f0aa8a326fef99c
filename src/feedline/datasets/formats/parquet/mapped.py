"""Memory-mapped Arrow files, and decoded row groups that are kept as such files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.paths import File
from feedline.datasets.framework.store import Entry
from feedline.errors import CorruptSource
from feedline.system.failures import words

if TYPE_CHECKING:
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
"""Files remembered as checked. A guess; two files that share a slot are checked again in turns."""


class Unpacked:
    """Decoded row groups, kept as Arrow files that every process maps: entries of `framework/store.py`.

    Two processes that write the same row group at once write the same bytes twice. Mapped memory cannot be checked at
    each use, so checksums are verified when a row group is first mapped. Processes forked from one that has the dataset
    verify it once between them, others once each.

    Args:
        folder: where.
        options: what else than file and columns decides how a row group is decoded.
    """

    def __init__(self, folder: str | os.PathLike[str], options: str = "") -> None:
        self.folder = Path(folder)
        self.options = options
        self._checked = np.frombuffer(mmap.mmap(-1, 8 * _SLOTS), np.int64)
        """Files whose checksums were verified by this process or one of its forked relatives."""

    def columns(
        self, file: File, number: int, names: Sequence[str], decode: Callable[[], Table]
    ) -> tuple[list[ChunkedArray], tuple[int, int]]:
        """Return columns of a row group, and the addresses between which they are mapped."""
        about = [file.identity, number, sorted(names), self.options]
        entry = Entry.at(self.folder, "arrow", about, file.stamp)
        mapped = self._mapped(entry)
        if mapped is None:
            table = decode()
            mapped = self._mapped(entry) if entry.write(_as_file(table)) else None
            if mapped is None:
                return [table.column(name) for name in names], (0, 0)
        batches = [mapped.batch(batch) for batch in range(mapped.count)]
        table = pyarrow().Table.from_batches(batches, mapped.schema)
        return [table.column(name) for name in names], mapped.addresses

    def _mapped(self, entry: Entry) -> Mapped | None:
        """Map a kept row group; return None if it is missing or damaged."""
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
            if was_checked:
                mapped.validated.update(range(mapped.count))
            for batch in range(mapped.count):
                mapped.batch(batch)
        except (CorruptSource, pa.ArrowException, OSError):
            return None
        finally:
            kept.close()
        self._checked[key % _SLOTS] = key
        return mapped

    def __reduce__(self) -> tuple[object, ...]:
        return Unpacked, (self.folder, self.options)


def _as_file(table: Table) -> Iterator[Buffer]:
    sink = pyarrow().BufferOutputStream()
    with pyarrow("pyarrow.ipc").new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    yield sink.getvalue()


def _key(file: os.stat_result) -> int:
    return hash((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)) or 1  # 0 is an empty slot
