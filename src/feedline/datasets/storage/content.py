"""The content of a file, in order and decompressed, and the places where reading can begin again.

A compressed file consists of units, each of which can be decompressed by itself: members of gzip, frames of zstd,
streams of bzip2 and xz. Most files have one unit. Files of bgzip and pzstd have many, and so have those that were
concatenated.
"""

from __future__ import annotations

import bz2
import functools
import itertools
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from feedline.datasets.storage.blob import Blob, LocalBlob
from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require

LOCAL_BLOCK, REMOTE_BLOCK = 1 << 20, 1 << 23
"""Bytes of a file to read at a time."""
_SLICE = 1 << 13
_ZSTD_SLICE = 1 << 11
"""Compressed bytes to decompress at a time. Slices from 2 KB to 256 KB take the same time. Only for zstd they limit
what comes out: four bytes may stand for 128 KB, so a slice for 64 MB."""
_PIECE = 1 << 18
"""The most content to decompress at a time, except with zstd."""
_MOST_WINDOW = 1 << 27
"""Memory that zstd and xz may use for a file: twice as much as what they take at their highest usual levels."""
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""Follows 0x50 to 0x5f at the beginning of a zstd frame without content, such as a seek table."""
_STARTS = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00"}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""How a block of bzip2 begins, and the end of a file without content."""
_HEAD = 8
"""Bytes that show how a file is compressed."""
PACKED = (".gz", ".zst", ".zstd", ".bz2", ".xz")
"""Endings of the names of compressed files."""


def packing_of(head: bytes) -> str | None:
    """Return the compression of a file, by its first bytes; None if it is not compressed.

    Example:
        >>> packing_of(b"BZh91AY"), packing_of(b"plain")
        ('bzip2', None)
    """
    if _is_zstd(head):
        return "zstd"
    if head.startswith(b"BZh"):  # which a word may begin with
        is_packed = head[3:4] in b"123456789" and any(block.startswith(head[4:8]) for block in _BZIP2_BLOCKS)
        return "bzip2" if is_packed else None
    return next((name for name, start in _STARTS.items() if head.startswith(start)), None)


def _is_zstd(head: bytes) -> bool:
    return head.startswith(_ZSTD) or (head[1:4] == _SKIPPABLE and head[0] & 0xF0 == 0x50)


class Place(NamedTuple):
    """A place in the content of a file, and where to begin to read it."""

    at: int = 0
    """Where its unit begins in the file."""
    base: int = 0
    """Where its unit begins in the content."""
    offset: int = 0
    """The place itself, as an offset in the content."""


BEGINNING = Place()


class ByteReader:
    """Bytes that arrive in pieces and are taken in any sizes."""

    def __init__(self, next_piece: Callable[[], bytes], offset: int = 0) -> None:
        self._next_piece = next_piece
        self._piece = b""
        self._used = 0
        self._base = offset
        """The offset of the piece."""

    @property
    def offset(self) -> int:
        """Where the next byte is."""
        return self._base + self._used

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; fewer at the end."""
        end = self._used + count
        if end <= len(self._piece):
            data = self._piece[self._used : end]
            self._used = end
            return data
        pieces, missing = [self._piece[self._used :]], end - len(self._piece)
        while missing > 0 and self._load():
            pieces.append(self._piece[:missing])
            self._used = len(pieces[-1])
            missing -= self._used
        return b"".join(pieces)

    def take_some(self) -> bytes:
        """Return the next bytes, as many as there are at hand; none at the end."""
        if self._used >= len(self._piece) and not self._load():
            return b""
        data = self._piece[self._used :] if self._used else self._piece
        self._used = len(self._piece)
        return data

    def skip(self, count: int) -> int:
        """Skip the next `count` bytes; return how many there were."""
        left = count
        while left > len(self._piece) - self._used:
            left -= len(self._piece) - self._used
            if not self._load():
                return count - left
        self._used += left
        return count

    def _load(self) -> bool:
        self._base += len(self._piece)
        self._piece, self._used = b"", 0
        self._piece = self._next_piece()
        return bool(self._piece)


class Content(ByteReader):
    """The content of a file from a place on.

    Args:
        next_chunk: returns the next bytes of the file, from `begin.at` on, and none at its end.
        name: the name of the file, for errors.
        packing: its compression; None if it has none.
        begin: where to begin. The reader skips what stands between the beginning of its unit and the place itself.

    Raises:
        MissingExtra: zstd needs a package that is not installed.
        CorruptSource: when reading: the file is damaged or cut off. What stands before the damage can be read.
    """

    def __init__(
        self, next_chunk: Callable[[], bytes], name: str, packing: str | None, begin: Place = BEGINNING
    ) -> None:
        self.packing = packing
        self._units = deque([Place(begin.at, begin.base, begin.base)])
        """The units that were begun, from that of the last `place` on."""
        next_piece = next_chunk
        if packing is not None:
            next_piece = _Unpacking(packing, next_chunk, name, begin, self._units).next_piece
        super().__init__(next_piece, begin.base)
        if self.skip(begin.offset - begin.base) < begin.offset - begin.base:
            raise CorruptSource(
                f"{name} ends at byte {self.offset} of its content, before the place to continue at. It was cut off, "
                "or is another file than before."
            )

    def place(self, offset: int) -> Place:
        """Return how to get to an offset again. Offsets must not decrease from call to call."""
        if self.packing is None:
            return Place(offset, offset, offset)
        units = self._units
        while len(units) > 1 and units[1].base <= offset:
            units.popleft()
        return units[0]._replace(offset=offset)


def content_of(blob: Blob, begin: Place = BEGINNING, packing: str | None = None, chunk_bytes: int = 0) -> Content:
    """Return the content of a blob. Its compression is found out if it is not given and `begin` is the beginning."""
    if packing is None and begin.at == 0:
        packing = packing_of(blob.read(0, min(_HEAD, blob.size)))
    return Content(chunks_of(blob, begin.at, chunk_bytes), blob.name, packing, begin)


def chunks_of(blob: Blob, start: int = 0, size: int = 0) -> Callable[[], bytes]:
    """Return a function that returns the bytes of a blob in chunks of some size, and none at its end."""
    size = size or (LOCAL_BLOCK if blob.is_local else REMOTE_BLOCK)
    starts = itertools.count(start, size)

    def next_chunk() -> bytes:
        at = next(starts)
        stop = min(at + size, blob.size)
        if isinstance(blob, LocalBlob):
            blob.hint(stop, stop + size)
        return blob.read(at, stop) if at < stop else b""

    return next_chunk


class _Unpacker(Protocol):
    """Decompresses one unit."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, size: int, /) -> bytes: ...


class _Gzip:
    """A gzip decompressor with the interface of those for bzip2 and xz."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._unpacker.unconsumed_tail

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._unpacker.decompress(self._unpacker.unconsumed_tail + data, size)


class _Zstd:
    """The same for a frame of zstd, whose decompressor accepts no limit."""

    needs_input = True

    def __init__(self) -> None:
        zstandard = require("zstandard", extra="tar", purpose="reading files compressed with zstd")
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()
        self._error: type[Exception] = zstandard.ZstdError

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.eof)

    @property
    def unused_data(self) -> bytes:
        data: bytes = self._unpacker.unused_data
        return data

    def decompress(self, data: bytes, size: int) -> bytes:
        try:
            content: bytes = self._unpacker.decompress(data)
        except self._error as exc:
            raise ValueError(words(exc)) from exc
        return content


_UNPACKERS: Mapping[str, Callable[[], _Unpacker]] = {
    "gzip": _Gzip,
    "zstd": _Zstd,
    "bzip2": bz2.BZ2Decompressor,
    "xz": functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _MOST_WINDOW),
}


class _Unpacking:
    """Decompresses the units of a file, one after the other, and notes where they begin in `units`."""

    def __init__(
        self, packing: str, next_chunk: Callable[[], bytes], name: str, begin: Place, units: deque[Place]
    ) -> None:
        self._packing = packing
        self._next_chunk = next_chunk
        self._name = name
        self._units = units
        self._slice = _ZSTD_SLICE if packing == "zstd" else _SLICE
        self._at = begin.at
        """How much of the file was used, as an offset in it."""
        self._offset = begin.base
        """How much content there was, as an offset in it."""
        self._chunk = memoryview(b"")
        self._used = 0
        """How many bytes of the chunk were used."""
        self._unpacker: _Unpacker | None = _UNPACKERS[packing]()

    def next_piece(self) -> bytes:
        """Return more content; none at the end. Reading to the end compares the checksums."""
        while self._unpacker is not None or self._begin():
            unpacker = self._unpacker
            assert unpacker is not None
            # Always the same slices of a unit, so that damage is met after the same content wherever reading began.
            is_wanted = unpacker.needs_input
            data = self._next_slice(self._slice) if is_wanted else b""
            try:
                piece = unpacker.decompress(data, _PIECE)
            except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as exc:
                raise self._damaged(words(exc), "It was cut off or damaged. Write or copy it again.") from exc
            if unpacker.eof:
                self._go(-len(unpacker.unused_data))
                self._unpacker = None
            elif is_wanted and not data and not piece:
                raise self._damaged("it ends within a compressed stream", "It was cut off. Write or copy it again.")
            if piece:
                self._offset += len(piece)
                return piece
        return b""

    def _next_slice(self, size: int) -> bytes:
        """Return the next bytes of the file; fewer only at its end."""
        data = self._following(size)
        self._go(len(data))
        return data

    def _go(self, count: int) -> None:
        self._used += count
        self._at += count

    def _following(self, size: int) -> bytes:
        """Return the next bytes of the file without going on; fewer only at its end."""
        while len(self._chunk) - self._used < size and (more := self._next_chunk()):
            left = bytes(self._chunk[self._used :])
            self._chunk, self._used = memoryview(left + more if left else more), 0
        return bytes(self._chunk[self._used : self._used + size])

    def _begin(self) -> bool:
        """Begin the next unit; False at the end of the file."""
        head = self._following(_HEAD)
        while self._packing != "zstd" and head[:1] == b"\0":  # zeros may stand between units
            zeros = self._following(_SLICE)
            self._go(len(zeros) - len(zeros.lstrip(b"\0")))
            head = self._following(_HEAD)
        if not head:
            return False
        if packing_of(head) != self._packing:
            raise self._damaged(
                "something follows what was compressed",
                "Bytes were written behind it, or it is damaged there. Write it again, with nothing behind it.",
            )
        if self._units[-1].base == self._offset:  # that unit was empty
            self._units.pop()
        self._units.append(Place(self._at, self._offset, self._offset))
        self._unpacker = _UNPACKERS[self._packing]()
        return True

    def _damaged(self, what: str, advice: str) -> CorruptSource:
        place = f"about byte {self._at} of the file, byte {self._offset} of the content"
        return CorruptSource(f"{self._name} cannot be unpacked: {what} ({place}). {advice}")
