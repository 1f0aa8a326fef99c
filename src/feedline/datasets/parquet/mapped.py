"""An Arrow file in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from feedline.datasets.parquet.values import pyarrow
from feedline.datasets.paths import File
from feedline.errors import CorruptSource
from feedline.failures import words

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
