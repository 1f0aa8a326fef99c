"""Shards and other files that are compressed as a whole."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from feedline._optional import require
from feedline.errors import CorruptSource, FeedlineError
from feedline.failures import words

_PIECE = 1 << 18
_XZ = b"\xfd7zXZ\x00"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", _XZ: "xz"}
_NO_STREAM = "no further stream begins there"
_NO_BEGINNING = ("Not a gzipped file", "Unknown frame descriptor", _NO_STREAM)
"""What gzip, zstd and `_Xz` say of bytes with which nothing compressed begins."""
_MOST_WINDOW = 1 << 27
"""Memory that zstd may use for one shard: what its own command line tool allows by default."""


def packing_of(head: bytes) -> str | None:
    """Return how a shard is compressed, by its first bytes; None if it is not.

    Example:
        >>> packing_of(gzip.compress(b"")), packing_of(b"0001.jpg")
        ('gzip', None)
    """
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


class Unpacking:
    """Unpacks a shard chunk by chunk, each of bounded size, however well it was compressed.

    Args:
        packing: how it is compressed, as `packing_of` says.
        next_chunk: returns more of the compressed bytes; none at the end.
        shard: its name, for errors.

    Raises:
        MissingExtra: zstd needs a package that is not installed.
    """

    def __init__(self, packing: str, next_chunk: Callable[[], bytes], shard: str) -> None:
        self._shard = shard
        self._broken: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
        self._file: Any  # one of four classes that share nothing but `read1` or `read`
        if packing == "gzip":
            self._file = gzip.GzipFile(fileobj=_file(next_chunk), mode="rb")
        elif packing == "bzip2":
            self._file = bz2.BZ2File(_file(next_chunk))
        elif packing == "xz":
            self._file = _Xz(next_chunk)
        else:
            zstandard = require("zstandard", extra="tar", purpose="reading shards compressed with zstd")
            self._broken += (zstandard.ZstdError,)
            self._file = _Zstd(zstandard, next_chunk)

    def next_chunk(self) -> bytes:
        """Return more bytes; none at the end. Whoever reads to the end has had the checksums compared.

        Raises:
            CorruptSource: what is there was not made by such a program, or is not whole.
        """
        try:
            data: bytes = self._file.read1(_PIECE) if hasattr(self._file, "read1") else self._file.read(_PIECE)
        except FeedlineError:
            raise
        except self._broken as exc:
            why = "It was cut off or damaged. Write or copy it again."
            if any(text in str(exc) for text in _NO_BEGINNING):  # its own beginning is one: `packing_of` has seen it
                why = (
                    "Something follows what was compressed: bytes were written behind it, or it is damaged there. "
                    "Write the shard again, with nothing behind it."
                )
            raise CorruptSource(f"{self._shard} cannot be unpacked: {words(exc)}. {why}") from exc
        return data


class UnpackedFile:
    """The bytes of a compressed file, from the first to the last. It is open only while some are read.

    Args:
        path: of the file.
        packing: how it is compressed.
    """

    def __init__(self, path: str, packing: str) -> None:
        self._path = path
        self._raw = 0
        self._unpacking = Unpacking(packing, self._next_piece, repr(path))
        self._left = b""
        self.place = 0
        """How many bytes were read."""

    def _next_piece(self) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(self._raw)
            piece = file.read(_PIECE)
        self._raw += len(piece)
        return piece

    def read(self, size: int) -> bytes:
        """Return so many bytes more, fewer only at the end of the file.

        Raises:
            CorruptSource: the file is damaged or cut off.
        """
        pieces, missing = [self._left], size - len(self._left)
        while missing > 0 and (piece := self._unpacking.next_chunk()):
            pieces.append(piece)
            missing -= len(piece)
        content = b"".join(pieces)
        self._left = content[size:]
        self.place += min(size, len(content))
        return content[:size]

    def skip_to(self, place: int) -> None:
        """Leave out what comes before a place."""
        while self.place < place and self.read(min(place - self.place, _PIECE)):
            pass


class _Xz:
    """Unpacks xz. The reader of the standard library takes zeros behind a stream for another one, which is cut off."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        self._next_chunk = next_chunk
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        self._head = b""
        """The beginning of the next stream."""

    def read(self, size: int) -> bytes:
        while True:
            if self._unpacker.eof and not self._begin_next():
                return b""
            chunk = b""
            if self._unpacker.needs_input:
                chunk, self._head = self._head or self._next_chunk(), b""
                if not chunk:
                    raise EOFError("it ends within a stream")
            if data := self._unpacker.decompress(chunk, size):
                return data

    def _begin_next(self) -> bool:
        """Leave out the zeros between streams; False at the end."""
        rest, padding = self._unpacker.unused_data, 0
        while True:
            chunk = rest.lstrip(b"\0")
            padding += len(rest) - len(chunk)
            if chunk or not (rest := self._next_chunk()):
                break
        while chunk and len(chunk) < len(_XZ) and (more := self._next_chunk()):
            chunk += more
        if padding % 4 or (chunk and not chunk.startswith(_XZ)):
            raise lzma.LZMAError(_NO_STREAM)
        if chunk:
            self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            self._head = chunk
        return bool(chunk)


class _Zstd:
    """Unpacks zstd. Its own reader takes a frame that is cut off for one that has ended.

    So another frame is put behind the shard: if its content does not come out at the end, the shard was not whole.
    """

    _MARK = b"here the shard has ended"

    # Any: a package without types.
    def __init__(self, zstandard: Any, next_chunk: Callable[[], bytes]) -> None:
        behind = zstandard.ZstdCompressor(write_checksum=True).compress(self._MARK)
        chunks = itertools.chain(iter(next_chunk, b""), [behind])
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        raw = _file(lambda: next(chunks, b""))
        self._reader = unpacker.stream_reader(raw, read_size=_PIECE, read_across_frames=True)
        self._held = b""

    def read(self, size: int) -> bytes:
        while data := self._reader.read(size - len(self._MARK)):
            held: bytes = self._held + data
            self._held = held[-len(self._MARK) :]
            if len(held) > len(self._MARK):
                return held[: -len(self._MARK)]
        if self._held != self._MARK:
            raise EOFError("it ends within a frame")
        return b""


def _file(next_chunk: Callable[[], bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Raw(next_chunk), _PIECE)


class _Raw(io.RawIOBase):
    """Chunks as a file, which is what the standard library unpacks."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        super().__init__()
        self._next_chunk = next_chunk
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # Any: whatever has a buffer
        if not self._chunk:
            self._chunk = memoryview(self._next_chunk())
        room = memoryview(buffer).cast("B")
        count = min(len(room), len(self._chunk))
        room[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count
