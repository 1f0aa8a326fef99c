"""Samples that LitData stored as rows of an Arrow table at the end of a chunk: dicts of texts, numbers and lists.

Newer versions of LitData do that for JSON-like samples. The chunk's own table lists the samples as empty. The
Arrow file that follows has record batches of 256 rows each.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from feedline.datasets.formats.indexed_shards import AGAIN, OpenShards
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.shard_files import ByteRange
from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require

if TYPE_CHECKING:
    from pyarrow import Table

_MAGIC = b"LDARW01\0"
_FOOTER = struct.Struct("<I8s")
"""The size of the Arrow file, and the mark that it is there."""


class ArrowRows:
    """The Arrow tables of the chunks that one process has read. Threads may use it at the same time."""

    def __init__(self, chunks: OpenShards, cache_bytes: int) -> None:
        self._chunks = chunks
        self._tables: BoundedCache[int, Table] = BoundedCache(cache_bytes)

    def row(self, chunk: int, place: int, name: str) -> dict[str, object]:
        """Return a sample. Raises CorruptSource: there is no such row; MissingExtra: pyarrow is not installed."""
        table = self._tables.load(chunk, functools.partial(self._load, chunk, name))
        if place >= table.num_rows:
            raise CorruptSource(f"{name} has {table.num_rows} rows, but sample {place} is listed. {AGAIN}")
        found: dict[str, object] = table.slice(place, 1).to_pylist()[0]
        return found

    def _read(self, chunk: int, start: int, stop: int) -> bytes:
        return self._chunks.read([ByteRange(chunk, start, stop)])[0]

    def _load(self, chunk: int, name: str) -> tuple[Table, int]:
        arrow = require("pyarrow", extra="parquet", purpose="reading rows of LitData")
        ipc = require("pyarrow.ipc", extra="parquet", purpose="reading rows of LitData")
        end = self._chunks.size(chunk)
        size, magic = _FOOTER.unpack(self._read(chunk, max(0, end - _FOOTER.size), end))
        if magic != _MAGIC or size > end - _FOOTER.size:
            raise CorruptSource(f"{name} lists empty samples, and no Arrow table follows them. {AGAIN}")
        data = self._read(chunk, end - _FOOTER.size - size, end - _FOOTER.size)
        opened = ipc.open_file if data.startswith(b"ARROW1") else ipc.open_stream
        try:
            table = opened(arrow.BufferReader(data)).read_all()
            table.validate(full=True)
        except (arrow.ArrowException, OSError, ValueError) as exc:
            raise CorruptSource(f"The Arrow table in {name} is damaged: {words(exc)}. {AGAIN}") from exc
        return table.combine_chunks(), max(size, table.nbytes)
