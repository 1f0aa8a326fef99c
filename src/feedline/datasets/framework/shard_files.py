"""The files that one thread has open, and ranges of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.ranges import Range, Span, coalesced, side_by_side
from feedline.errors import SourceChanged

_MOST_OPEN = 64
"""Files that one thread keeps open. A guess: far below the usual limit of 1,024 files."""


R = TypeVar("R", bound=Range)


class ByteRange(NamedTuple):
    """Bytes of a file."""

    shard: int
    """The number of the file."""
    start: int
    stop: int


class ShardFiles:
    """Files that are opened when they are needed. If there are too many, the least recently used are released.

    Args:
        open_file: opens a file by its number, after checking that it is the one that is meant.
        request_count: how many ranges of remote files are requested at the same time.
    """

    def __init__(self, open_file: Callable[[int], Blob], request_count: int) -> None:
        self._open_file = open_file
        self._request_count = request_count
        self._blobs = BoundedCache[int, Blob](_MOST_OPEN)

    def blob(self, number: int) -> Blob:
        """Return an open file, which stays open as long as something refers to it."""
        blob = self._blobs.get(number)
        if blob is None or _is_replaced(blob):
            blob = self._open_file(number)
            self._blobs.put(number, blob)
        return blob

    def spans(self, ranges: Sequence[R]) -> list[tuple[Span[R], bytes]]:
        """Read ranges, those that are near each other together; return what was read.

        Raises what `open_file` and `Blob.read` raise.
        """
        blobs = {number: self.blob(number) for number in dict.fromkeys(one.shard for one in ranges)}
        spans = coalesced(ranges, is_local=lambda number: blobs[number].is_local)

        def read(span: Span[R]) -> bytes:
            return blobs[span.shard].read(span.start, span.stop)

        are_local = all(blob.is_local for blob in blobs.values())
        contents = side_by_side(read, spans, 1 if are_local else self._request_count)
        return list(zip(spans, contents, strict=True))

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of ranges, in order. Raises what `spans` raises."""
        found = {
            one: content[one.start - span.start : one.stop - span.start]
            for span, content in self.spans(ranges)
            for one in span.ranges
        }
        return [found[one] for one in ranges]

    def close(self) -> None:
        """Release all files."""
        self._blobs.clear()


def _is_replaced(blob: Blob) -> bool:
    """True if an open local file was written to. Changes of remote files are found out while reading."""
    if not blob.is_local:
        return False
    try:
        blob.check()
    except SourceChanged:
        return True
    return False
