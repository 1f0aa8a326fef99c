"""Reads blocks of lines: from any place of a plain file, and of a compressed one from the nearest place before it.

Members of gzip are long, so a process that reads in one keeps copies of the decompressor's state, and goes on from the
nearest of them. Such a copy takes 3 microseconds and 40 KB; it cannot be stored on disk, so that each process makes its
own while it reads.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from feedline.datasets.formats.lines.format import SPACE
from feedline.datasets.formats.lines.index import BLOCK_BYTES, PACKED_BYTES, FileIndex, LineIndex, chunks_of
from feedline.datasets.formats.lines.inflating import Checkpoint, Inflating
from feedline.datasets.formats.lines.scan import Numbers
from feedline.datasets.formats.lines.unpacked import Unpacked
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.ranges import Span, coalesced, side_by_side
from feedline.datasets.storage.storage import Storage
from feedline.errors import CorruptSource, SourceChanged

_MOST_OPEN = 64
"""Files that one thread keeps open. A guess: far below the usual limit of 1,024 files."""
_MOST_INFLATING = 8
"""Compressed files that one thread keeps a position in. A guess."""
_CHUNK = 1 << 17
"""Bytes of a compressed file to read at a time: a block often needs no more. A guess."""
_STRIDE = 1 << 22
"""Content between two copies of a decompressor's state, at least."""
_MOST_COPIES = 256
"""Copies for one file: 10 MB."""


class Block:
    """The lines of a block that are samples."""

    def __init__(self, content: bytes, *, skips_blank: bool) -> None:
        self.content = content
        codes = np.frombuffer(content, np.uint8)
        ends = np.flatnonzero(codes == 10)
        has_end = content.endswith(b"\n")
        stops = ends if has_end or not content else np.append(ends, len(content))
        starts = np.concatenate([[0], ends + 1])[: len(stops)]
        self._open = -1 if has_end else len(stops) - 1
        """The line that has no end, -1 if all have."""
        self._numbers: Numbers | None = None
        """Which lines are samples; None for all."""
        if skips_blank and (codes[starts] <= 32).any():
            spans = zip(starts.tolist(), stops.tolist(), strict=True)
            self._numbers = np.array([n for n, (a, b) in enumerate(spans) if content[a:b].strip(SPACE)], np.int64)
        self._starts = starts
        self._stops = stops

    def line(self, place: int) -> bytes:
        """Return a line without its end."""
        number = self.number(place)
        line = self.content[int(self._starts[number]) : int(self._stops[number])]
        return line[:-1] if line.endswith(b"\r") and number != self._open else line

    def number(self, place: int) -> int:
        """Return how many lines of the block precede a sample."""
        return place if self._numbers is None else int(self._numbers[place])

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._starts) if self._numbers is None else len(self._numbers)

    @property
    def held_bytes(self) -> int:
        """The memory that it takes."""
        return len(self.content) + 16 * len(self._starts) + 512


class _Cursor:
    """A position in a compressed file, and states to return to."""

    def __init__(self, blob: Blob, index: FileIndex) -> None:
        self.blob = blob
        self._index = index
        self._pieces: Inflating | None = None
        self._held = b""
        """Content that was decompressed last, up to the offset of the pieces."""
        self._copies: list[Checkpoint] = []
        self._stride = max(_STRIDE, int(index.starts[-1]) // _MOST_COPIES)
        self.went_back = False
        """True if content had to be decompressed again."""

    def read_from(self, blob: Blob) -> None:
        """Read from the same file, which may have been opened again."""
        if self.blob is not blob:
            self.blob, self._pieces = blob, None

    def read(self, start: int, stop: int) -> bytes:
        """Return content. Raises CorruptSource: the file is damaged."""
        try:
            return self._read(start, stop)
        except BaseException:
            self._pieces = None  # part of it may be lost
            raise

    def _read(self, start: int, stop: int) -> bytes:
        pieces = self._at(start)
        content = [self._held[start - (pieces.offset - len(self._held)) :]] if start < pieces.offset else []
        while pieces.offset < stop:
            before = pieces.offset
            self._held = pieces.next_piece()
            if not self._held:
                raise CorruptSource(
                    f"{self.blob.name} ends at byte {before} of its content, but had {int(self._index.starts[-1])} "
                    "when its index was made."
                )
            self._note(pieces)
            if pieces.offset > start:
                content.append(self._held[max(0, start - before) :])
        return b"".join(content)[: stop - start]

    def _at(self, start: int) -> Inflating:
        """Return the content from the nearest place before an offset on."""
        unit = self._index.before(start)
        copy = bisect.bisect_right(self._copies, start, key=lambda one: one.offset) - 1
        best = self._copies[copy] if copy >= 0 and self._copies[copy].offset > unit.offset else unit
        pieces = self._pieces
        is_behind = pieces is not None and start < pieces.offset - len(self._held)
        if pieces is None or is_behind or pieces.offset < best.offset:
            self.went_back = is_behind
            packing = self._index.packing
            pieces = Inflating(packing, chunks_of(self.blob, best.at, _CHUNK), self.blob.name, best)
            self._pieces, self._held = pieces, b""
        return pieces

    def _note(self, pieces: Inflating) -> None:
        """Keep a copy of the state, unless there is another place to start from nearby."""
        offset, copies = pieces.offset, self._copies
        place = bisect.bisect_right(copies, offset, key=lambda one: one.offset)
        before = max(pieces.point.offset, copies[place - 1].offset if place else 0)
        after = copies[place].offset if place < len(copies) else offset + self._stride
        if offset - before >= self._stride <= after - offset and (copy := pieces.checkpoint()) is not None:
            copies.insert(place, copy)


class _Wanted(NamedTuple):
    """Where a block is in the content of a file."""

    shard: int
    """The number of the file, as `coalesced` calls it."""
    start: int
    stop: int


class BlockReader:
    """The open files of one thread.

    Args:
        open_storage: opens a storage for this thread.
        addresses: the files.
        unpacked: those that are read from decompressed copies, by number.
        index: where their lines are.
        limit: the most bytes of a line; of a longer one, only the beginning is read.
        request_count: how many ranges of remote files are requested at the same time.
    """

    def __init__(
        self,
        open_storage: Callable[[], Storage],
        addresses: Sequence[str],
        unpacked: Mapping[int, Unpacked],
        index: LineIndex,
        *,
        limit: int,
        request_count: int,
    ) -> None:
        self._storage = open_storage()
        self._addresses = addresses
        self._unpacked = unpacked
        self._index = index
        self._limit = limit
        self._request_count = request_count
        self._blobs = BoundedCache[int, Blob](_MOST_OPEN)
        """Open files."""
        self._cursors = BoundedCache[int, _Cursor](_MOST_INFLATING)

    def read(self, blocks: Sequence[int]) -> tuple[list[bytes], bool]:
        """Return the contents of blocks, given in ascending order, and whether a file was decompressed again.

        Raises SourceChanged: a file has changed since its index was made; SourceError: it cannot be read.
        """
        wanted = [self._wanted(*self._index.place(block)) for block in blocks]
        blobs = {one.shard: self._blob(one.shard) for one in wanted}
        plain = [one for one in wanted if not self._index.files[one.shard].packing]
        contents = dict(zip(plain, self._ranges(blobs, plain), strict=True))
        went_back = False
        for one in wanted:
            if one not in contents:
                cursor = self._cursor(one.shard, blobs[one.shard])
                contents[one] = cursor.read(one.start, one.stop)
                went_back = went_back or cursor.went_back
        for blob in blobs.values():
            blob.check()  # what was read may be from another version
        return [contents[one] for one in wanted], went_back

    def _wanted(self, file: int, number: int) -> _Wanted:
        index = self._index.files[file]
        start, stop = index.starts[number : number + 2].tolist()
        most = self._limit + 1 + (PACKED_BYTES if index.packing else BLOCK_BYTES)
        return _Wanted(file, start, min(stop, start + most))

    def _blob(self, file: int) -> Blob:
        opened, index = self._blobs.get(file), self._index.files[file]
        if opened is not None and not _is_replaced(opened):
            return opened
        copied = self._unpacked.get(file)
        blob = copied.open() if copied else self._storage.open(self._addresses[file])
        if (blob.size, blob.tag) != (index.size, index.tag):
            blob.close()
            raise SourceChanged(
                f"{blob.name} has changed since its index was made: it had {index.size} bytes and the tag "
                f"{index.tag}, and has {blob.size} and {blob.tag}. Make the dataset again: the index will be, too."
            )
        self._blobs.put(file, blob)
        return blob

    def _cursor(self, file: int, blob: Blob) -> _Cursor:
        cursor = self._cursors.get(file)
        if cursor is None or (cursor.blob is not blob and blob.is_local):
            cursor = _Cursor(blob, self._index.files[file])
            self._cursors.put(file, cursor)
        cursor.read_from(blob)
        return cursor

    def _ranges(self, blobs: Mapping[int, Blob], wanted: list[_Wanted]) -> list[bytes]:
        """Read blocks of plain files in ascending order, merging nearby ones; several reads at a time if remote."""

        def read(span: Span[_Wanted]) -> list[bytes]:
            content = blobs[span.shard].read(span.start, span.stop)
            return [content[one.start - span.start : one.stop - span.start] for one in span.ranges]

        spans = coalesced(wanted, is_local=lambda shard: blobs[shard].is_local)
        are_local = all(blob.is_local for blob in blobs.values())
        contents = side_by_side(read, spans, 1 if are_local else self._request_count)
        return [content for some in contents for content in some]

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._cursors.clear()
        self._blobs.clear()
        self._storage.close()


def _is_replaced(blob: Blob) -> bool:
    """True if an open local file was modified; changes of remote files are detected after reading."""
    if not blob.is_local:
        return False
    try:
        blob.check()
    except SourceChanged:
        return True
    return False
