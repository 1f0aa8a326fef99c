"""Read a remote Parquet file with pyarrow, in few requests."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.disk_cache import PIECE_BYTES
from feedline.datasets.storage.ranges import side_by_side

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_GAP = 1 << 18
"""Ranges at most this many bytes apart are fetched in one request. A guess."""
_PART = PIECE_BYTES
"""Bytes per request, at most: large enough that its latency does not matter, small enough to have several in flight."""
REQUESTS = 32
"""Requests in flight for a row group, and for the footers of many files. A guess."""

Range = tuple[int, int]


class BlobFile(io.RawIOBase):
    """A blob as a file object for pyarrow, which reads it with one thread at a time."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self.blob = blob
        self._at = 0
        self._fetched: list[tuple[Range, bytes]] = []

    def fetch(self, ranges: Iterable[Range]) -> None:
        """Fetch ranges that will be read; merge nearby ranges, and fetch several parts at once."""
        parts = parts_of((max(0, start), min(stop, self.blob.size)) for start, stop in ranges)
        contents = side_by_side(lambda part: self.blob.read(*part), parts, REQUESTS)
        self._fetched = list(zip(parts, contents, strict=True))

    def read(self, size: int | None = -1) -> bytes | memoryview:
        start, stop = self._at, self.blob.size
        if size is not None and size >= 0:
            stop = min(start + size, stop)
        if stop <= start:
            return b""
        self._at = stop
        pieces, at = list[memoryview](), start
        for (first, last), content in self._fetched:
            if first <= at < min(last, stop):
                pieces.append(memoryview(content)[at - first : stop - first])
                at = min(last, stop)
        if at < stop:
            return self.blob.read(start, stop)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.blob.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def parts_of(ranges: Iterable[Range]) -> list[Range]:
    """Return the requests that cover all of these ranges.

    Example:
        >>> parts_of([(400_000, 500_000), (0, 100), (200, 300), (800_000, 5_000_000)])
        [(0, 300), (400000, 500000), (800000, 2097152), (2097152, 4194304), (4194304, 5000000)]
    """
    spans: list[Range] = []
    for start, stop in sorted(range_ for range_ in ranges if range_[0] < range_[1]):
        if spans and start - spans[-1][1] <= _GAP:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    parts: list[Range] = []
    for start, stop in spans:
        cuts = range((start // _PART + 1) * _PART, stop, _PART)  # where pieces in a cache end
        parts += itertools.pairwise([start, *cuts, stop])
    return parts


class _Noted(Exception):
    """A range was requested and recorded."""


class _Notes(BlobFile):
    """A file that records the ranges requested from it and returns nothing."""

    def __init__(self, blob: Blob) -> None:
        super().__init__(blob)
        self.ranges: list[Range] = []

    def read(self, size: int | None = -1) -> bytes | memoryview:
        self.ranges.append((self._at, self._at + (size or 0)))
        raise _Noted


def chunks_of(blob: Blob, metadata: FileMetaData, number: int, names: list[str]) -> list[Range]:
    """Return the byte ranges of some columns' chunks in a row group.

    This asks pyarrow's reader instead of the footer: on a damaged footer, `RowGroupMetaData.column` ends the process
    (pyarrow 26).
    """
    notes = _Notes(blob)
    reader = pyarrow("pyarrow.parquet").ParquetFile(notes, metadata=metadata, pre_buffer=False)
    wanted = set(names)
    for path in [metadata.schema.column(place).path for place in range(metadata.num_columns)]:
        # Paths of nested columns begin with the column's name, and names may contain dots as well.
        if not wanted.isdisjoint(itertools.accumulate(path.split("."), "{}.{}".format)):
            with contextlib.suppress(_Noted):
                reader.read_row_group(number, columns=[path], use_threads=False)
    return notes.ranges
