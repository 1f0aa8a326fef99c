"""Decompresses shards and other files that are compressed as a whole."""

from __future__ import annotations

import bz2
import functools
import itertools
import lzma
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Protocol

from feedline.errors import CorruptSource, FeedlineError
from feedline.system.failures import words
from feedline.system.optional import require

_PIECE = 1 << 18
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00"}
_NO_STREAM = "no further stream begins there"
_NO_BEGINNING = ("Unknown frame descriptor", _NO_STREAM)
"""Errors of zstd and `_Streams` for bytes that do not start a compressed stream."""
_MOST_WINDOW = 1 << 27
"""Memory that zstd may use for one shard: the default of its own command line tool."""


class Bytes:
    """Bytes that arrive in chunks and are taken in pieces of any size."""

    def __init__(self, next_chunk: Callable[[], bytes], offset: int = 0) -> None:
        self._next_chunk = next_chunk
        self._chunk = b""
        self._at = 0
        self._base = offset
        """The offset of the chunk."""

    @property
    def offset(self) -> int:
        """Where the next piece begins."""
        return self._base + self._at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; fewer at the end."""
        end = self._at + count
        if end <= len(self._chunk):
            data = self._chunk[self._at : end]
            self._at = end
            return data
        pieces, missing = [self._chunk[self._at :]], end - len(self._chunk)
        while missing > 0 and self._load():
            pieces.append(self._chunk[:missing])
            self._at = len(pieces[-1])
            missing -= self._at
        return b"".join(pieces)

    def skip(self, count: int) -> int:
        """Skip the next `count` bytes; return how many there were."""
        left = count
        while left > len(self._chunk) - self._at:
            left -= len(self._chunk) - self._at
            if not self._load():
                return count - left
        self._at += left
        return count

    def _load(self) -> bool:
        self._base += len(self._chunk)
        self._at = 0
        self._chunk = self._next_chunk()
        return bool(self._chunk)


def packing_of(head: bytes) -> str | None:
    """Return the compression of a shard, by its first bytes; None if it is not compressed."""
    return next((name for name, magic in _MAGIC.items() if head.startswith(magic)), None)


class Unpacking:
    """Decompresses a shard in chunks of bounded size, regardless of the compression ratio.

    Raises MissingExtra: zstd needs a package that is not installed.
    """

    def __init__(self, packing: str, next_chunk: Callable[[], bytes], shard: str) -> None:
        self._shard = shard
        self._broken: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
        if packing == "zstd":
            zstandard = require("zstandard", extra="tar", purpose="reading shards compressed with zstd")
            self._broken += (zstandard.ZstdError,)
            self._read = _Zstd(zstandard, next_chunk).read
        else:
            self._read = _Streams(packing, next_chunk).read

    def next_chunk(self) -> bytes:
        """Return more bytes; none at the end. Reading to the end compares the checksums."""
        try:
            return self._read(_PIECE)
        except FeedlineError:
            raise
        except self._broken as exc:
            why = "It was cut off or damaged. Write or copy it again."
            if any(text in str(exc) for text in _NO_BEGINNING):  # not its own start, which `packing_of` has checked
                why = (
                    "Something follows what was compressed: bytes were written behind it, or it is damaged there. "
                    "Write the shard again, with nothing behind it."
                )
            raise CorruptSource(f"{self._shard} cannot be unpacked: {words(exc)}. {why}") from exc


def unpacked_file(path: str, packing: str) -> Bytes:
    """Return the bytes of a compressed file, in order. The file is open only during reads."""
    places = itertools.count(0, _PIECE)

    def next_piece() -> bytes:
        with open(path, "rb") as file:
            file.seek(next(places))
            return file.read(_PIECE)

    return Bytes(Unpacking(packing, next_piece, repr(path)).next_chunk)


class _Unpacker(Protocol):
    """Decompresses one stream."""

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


class _Streams:
    """Decompresses gzip, bzip2 or xz files, which may hold several streams with zeros between them.

    The readers of the standard library each treat such zeros, and bytes after a stream, differently.
    """

    _UNPACKERS: Mapping[str, Callable[[], _Unpacker]] = {
        "gzip": _Gzip,
        "bzip2": bz2.BZ2Decompressor,
        "xz": functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
    }

    def __init__(self, packing: str, next_chunk: Callable[[], bytes]) -> None:
        self._packing = packing
        self._next_chunk = next_chunk
        self._unpacker = self._UNPACKERS[packing]()
        self._head = b""
        """The beginning of the next stream."""

    def read(self, size: int) -> bytes:
        while True:
            if self._unpacker.eof and not self._begin_next():
                return b""
            chunk, is_wanted = b"", self._unpacker.needs_input
            if is_wanted:
                chunk, self._head = self._head or self._next_chunk(), b""
            data = self._unpacker.decompress(chunk, size)
            if data:
                return data
            if is_wanted and not chunk and not self._unpacker.eof:
                raise EOFError("it ends within a stream")

    def _begin_next(self) -> bool:
        """Skip the zeros between streams; False at the end."""
        rest, padding, magic = self._unpacker.unused_data, 0, _MAGIC[self._packing]
        while True:
            chunk = rest.lstrip(b"\0")
            padding += len(rest) - len(chunk)
            if chunk or not (rest := self._next_chunk()):
                break
        while chunk and len(chunk) < len(magic) and (more := self._next_chunk()):
            chunk += more
        if (padding % 4 and self._packing == "xz") or (chunk and not chunk.startswith(magic)):
            raise lzma.LZMAError(_NO_STREAM)
        if chunk:
            self._unpacker, self._head = self._UNPACKERS[self._packing](), chunk
        return bool(chunk)


class _Zstd:
    """Decompresses zstd. Its own reader treats a truncated frame as complete.

    So another frame is appended to the shard: if its content does not appear at the end, the shard was incomplete.
    """

    _MARK = b"here the shard has ended"

    def __init__(self, zstandard: ModuleType, next_chunk: Callable[[], bytes]) -> None:
        behind = zstandard.ZstdCompressor(write_checksum=True).compress(self._MARK)
        chunks = itertools.chain(iter(next_chunk, b""), [behind])
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        raw = SimpleNamespace(read=lambda size: next(chunks, b""))
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
