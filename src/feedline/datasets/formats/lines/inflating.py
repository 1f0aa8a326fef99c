"""The bytes of a file in order, decompressed, and the places where decompression can start.

A compressed file consists of units, each of which can be decompressed by itself: members of gzip, frames of zstd,
streams of bzip2 and xz. Most files have one unit. Files of bgzip, and files that were concatenated, have many.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from feedline.datasets.storage.unpacking import packing_of
from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.optional import require

_SLICE = 1 << 13
"""Compressed bytes to decompress at a time: few, because they may stand for thousands of times as many. Slices of 4 KB
to 256 KB take the same time. Measured once."""
_MOST_WINDOW = 1 << 27
"""Memory that zstd may use for a file: the default of its own command line tool."""
_SKIPPABLE = b"\x2a\x4d\x18"
"""Follows 0x50 to 0x5f at the beginning of a zstd frame without content, such as a seek table."""
_STARTS = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00"}


class Point(NamedTuple):
    """Where a unit begins."""

    at: int
    """In the file."""
    offset: int
    """In the decompressed content."""


BEGINNING = Point(0, 0)


class Checkpoint(NamedTuple):
    """The state of a decompressor inside a unit. It cannot be stored on disk."""

    at: int
    offset: int
    point: Point
    unpacker: zlib._Decompress


def packing_in(head: bytes) -> str | None:
    """Return the compression of a file, by its first 8 bytes; None if it is not compressed."""
    return "zstd" if _is_zstd(head) else packing_of(head)


def _is_zstd(head: bytes) -> bool:
    return head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == _SKIPPABLE and head[0] & 0xF0 == 0x50)


class Inflating:
    """Decompresses a file from one of its units on.

    Args:
        packing: the compression; None for a file that is not compressed.
        next_chunk: returns the next bytes of the file from `start` on, and none at its end.
        name: the name of the file, for errors.
        start: where to start.
    """

    def __init__(
        self, packing: str | None, next_chunk: Callable[[], bytes], name: str, start: Point | Checkpoint = BEGINNING
    ) -> None:
        self._packing = packing
        self._next_chunk = next_chunk
        self._name = name
        self._chunk = memoryview(b"")
        self._used = 0
        """How many bytes of the chunk are used up."""
        self._at = start.at
        """Where the chunk begins in the file."""
        self.offset = start.offset
        """Where the next piece begins in the decompressed content."""
        self.point = start.point if isinstance(start, Checkpoint) else Point(*start)
        """The last unit that was started."""
        # Any: one of four classes that share no base.
        self._unpacker: Any = start.unpacker.copy() if isinstance(start, Checkpoint) else None
        self._broken: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
        if packing == "zstd":
            zstandard = require("zstandard", extra="tar", purpose="reading files compressed with zstd")
            self._zstandard = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
            self._broken += (zstandard.ZstdError,)

    def next_piece(self) -> bytes:
        """Return more bytes, none at the end. Raises CorruptSource: the file is damaged."""
        if self._packing is None:
            piece = self._next_chunk()
            self.point = Point(self.offset, self.offset)
            self.offset += len(piece)
            return piece
        while self._unpacker is not None or self._begin():
            # Always the same slices of a unit, so that damage is met after the same content, wherever reading began.
            self._hold(_SLICE)
            data = self._chunk[self._used : self._used + _SLICE]
            if not data:
                raise self._damaged("it ends within a compressed stream", "It was cut off. Copy or write it again.")
            self._used += len(data)
            try:
                piece = bytes(self._unpacker.decompress(data))
            except self._broken as exc:
                raise self._damaged(words(exc), "It is damaged. Copy or write it again.") from exc
            if self._unpacker.eof:
                self._used -= len(self._unpacker.unused_data)
                self._unpacker = None
            if piece:
                self.offset += len(piece)
                return piece
        return b""

    def checkpoint(self) -> Checkpoint | None:
        """Return the current state, None if there is no way to copy it. Only gzip has one; it takes 40 KB."""
        if self._packing != "gzip" or self._unpacker is None:
            return None
        return Checkpoint(self._at + self._used, self.offset, self.point, self._unpacker.copy())

    def _fill(self) -> bool:
        """Get another chunk if this one is used up; False at the end of the file."""
        if self._used < len(self._chunk):
            return True
        self._at += len(self._chunk)
        self._chunk, self._used = memoryview(self._next_chunk()), 0
        return len(self._chunk) > 0

    def _begin(self) -> bool:
        """Begin the next unit; False at the end of the file."""
        if self._packing != "zstd":
            while self._fill():  # zeros may stand between units
                rest = bytes(self._chunk[self._used :])
                self._used += len(rest) - len(rest.lstrip(b"\0"))
                if self._used < len(self._chunk):
                    break
        if not self._fill():
            return False
        self._hold(8)
        head = bytes(self._chunk[self._used : self._used + 8])
        is_begun = _is_zstd(head) if self._packing == "zstd" else head.startswith(_STARTS[str(self._packing)])
        if not is_begun:
            raise self._damaged(
                "bytes follow that were not compressed",
                "They were written behind the content, or the file is damaged there. Write it again.",
            )
        self.point = Point(self._at + self._used, self.offset)
        self._unpacker = self._new()
        return True

    def _hold(self, size: int) -> None:
        """Get more chunks until `size` bytes are left, or the file ends."""
        while len(self._chunk) - self._used < size and (more := self._next_chunk()):
            left = bytes(self._chunk[self._used :])
            self._at, self._chunk, self._used = self._at + self._used, memoryview(left + more), 0

    def _new(self) -> object:
        if self._packing == "gzip":
            return zlib.decompressobj(31)
        if self._packing == "zstd":
            return self._zstandard.decompressobj()
        return bz2.BZ2Decompressor() if self._packing == "bzip2" else lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def _damaged(self, what: str, advice: str) -> CorruptSource:
        place = f"about byte {self._at + self._used} of the file, byte {self.offset} of the content"
        return CorruptSource(f"{self._name} cannot be unpacked: {what} ({place}). {advice}")
