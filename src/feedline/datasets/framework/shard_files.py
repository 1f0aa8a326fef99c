"""The files that one thread has open, and ranges of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import NamedTuple, TypeVar

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.ranges import Range, Span, coalesced, side_by_side
from feedline.errors import CorruptSource, SourceChanged

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

    A file that is opened again must be the one that was indexed. One of the same size and time may be another: then
    the stamps differ. But they also differ after a new link or new permissions, so the index decides.

    Args:
        open_file: opens a file by its number, after checking that it has the size and the time that are meant.
        request_count: how many ranges of remote files are requested at the same time.
        stamps: the stamps of files when they were indexed. Others are noted here when they are first opened.
        has_same_index: True if an index of the file, made anew, is the one that is used; it may raise CorruptSource.
            None if there is no index.
    """

    def __init__(
        self,
        open_file: Callable[[int], Blob],
        request_count: int,
        stamps: dict[int, str] | None = None,
        has_same_index: Callable[[int, Blob], bool] | None = None,
    ) -> None:
        self._open_file = open_file
        self._request_count = request_count
        self._stamps = {} if stamps is None else stamps
        self._has_same_index = has_same_index
        self._blobs = BoundedCache[int, Blob](_MOST_OPEN)

    def blob(self, number: int) -> Blob:
        """Return an open file, which stays open as long as something refers to it."""
        blob = self._blobs.get(number)
        if blob is None or _is_replaced(blob):
            blob = self._open_file(number)
            self._check_index(number, blob)
            self._blobs.put(number, blob)
        return blob

    def _check_index(self, number: int, blob: Blob) -> None:
        if self._has_same_index is None or blob.stamp == self._stamps.setdefault(number, blob.stamp):
            return
        try:
            is_same = self._has_same_index(number, blob)
        except CorruptSource:
            is_same = False
        if not is_same:
            blob.close()
            raise SourceChanged(
                f"{blob.name} was replaced by another file of the same size and time since its index was made. Make "
                "the dataset again."
            )
        self._stamps[number] = blob.stamp

    def spans(self, ranges: Sequence[R]) -> list[tuple[Span[R], bytes]]:
        """Read ranges, those that are near each other together; return what was read.

        Raises what `open_file` and `Blob.read` raise, and SourceChanged: a file has changed in the meantime.
        """
        blobs = {number: self.blob(number) for number in dict.fromkeys(one.shard for one in ranges)}
        spans = coalesced(ranges, is_local=lambda number: blobs[number].is_local)

        def read(span: Span[R]) -> bytes:
            return blobs[span.shard].read(span.start, span.stop)

        with self._unchanged(blobs.values()):
            contents = side_by_side(read, spans, self._at_once(blobs.values()))
        return list(zip(spans, contents, strict=True))

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of ranges, in order.

        Raises what `spans` raises.
        """
        blobs = {number: self.blob(number) for number in {one[0] for one in ranges}}
        if all(blob.is_local for blob in blobs.values()):  # merging them would cost more than a read of each
            with self._unchanged(blobs.values()):
                return [blobs[number].read(start, stop) for number, start, stop in ranges]
        found = {
            one: content[one.start - span.start : one.stop - span.start]
            for span, content in self.spans(ranges)
            for one in span.ranges
        }
        return [found[one] for one in ranges]

    def _at_once(self, blobs: Iterable[Blob]) -> int:
        """Return how many requests for these files to make at the same time."""
        return 1 if all(blob.is_local for blob in blobs) else self._request_count

    @contextmanager
    def _unchanged(self, blobs: Collection[Blob]) -> Iterator[None]:
        """Raise SourceChanged if a file has changed by the end of the block."""
        try:
            yield
        finally:  # what was read, or could not be read, may be from another version
            side_by_side(methodcaller("check"), list(blobs), self._at_once(blobs))

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
