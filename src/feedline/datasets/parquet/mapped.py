"""An Arrow file in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline._optional import require
from feedline.datasets.parquet.files import File
from feedline.errors import CorruptSource

# Any, throughout: pyarrow has no types to check against.

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The mark at the end of a stream: without it, nobody could tell that record batches are missing."""


@dataclass(frozen=True)
class Mapped:
    """An Arrow file, or a stream in a file, that is mapped into memory."""

    schema: Any
    addresses: tuple[int, int]
    """Where it lies."""
    count: int
    """How many record batches it has."""
    reader: Any
    """Reads one, of a file."""
    batches: list[Any] | None
    """All of them, of a stream: it has no index."""

    @classmethod
    def of(cls, file: File) -> Mapped:
        """Map a file.

        Raises:
            CorruptSource: it is empty, or the end is missing.
        """
        pa = require("pyarrow", extra="parquet", purpose="ArrowDataset")
        ipc = require("pyarrow.ipc", extra="parquet", purpose="ArrowDataset")
        if file.size == 0:
            raise CorruptSource(f"{file.path!r} is empty: not even a schema is in it. Make it anew, or leave it out.")
        with pa.memory_map(file.path) as opened:
            buffer = opened.read_buffer()  # keeps the map, and no file is left open
        addresses = (buffer.address, buffer.address + buffer.size)
        if bytes(buffer[:6]) == b"ARROW1":
            reader = ipc.open_file(pa.BufferReader(buffer))
            return cls(reader.schema, addresses, reader.num_record_batches, reader, None)
        if bytes(buffer[-8:]) != _END:
            raise CorruptSource(
                f"{file.path!r} does not end as an Arrow file or stream does. It is cut off, still being written, or "
                "no such file: make it anew, or leave it out."
            )
        stream = ipc.open_stream(pa.BufferReader(buffer))
        batches = list(stream)
        return cls(stream.schema, addresses, len(batches), None, batches)

    def batch(self, number: int) -> Any:
        """Return a record batch."""
        return self.reader.get_batch(number) if self.batches is None else self.batches[number]
