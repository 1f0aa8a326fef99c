"""The files in a shard, one after the other, and the 512-byte headers before them.

Names, sizes and types are interpreted as in Python's tarfile, on which the webdataset package is built. Where tarfile
mistakes damage for the end of an archive, this module raises an error.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping

from feedline.datasets.framework.checksums import check_seal, damaged
from feedline.datasets.framework.form import check_count
from feedline.datasets.storage.content import ByteReader
from feedline.errors import CorruptSource
from feedline.system.failures import words
from feedline.system.sizes import check_size

BLOCK = 512
EMPTY = bytes(BLOCK)
EXTENSION_LIMIT = 1 << 20
"""The most bytes of a long name or a set of pax records. Linux paths end at 4096."""

_FILES = frozenset(b"0\x007")
_EXTENSIONS = frozenset(b"LKxgX")
_SUPPORTED = frozenset(b"0\x001234567LKSxgX")
_SPARSE, _DIRECTORY, _LONG_NAME, _COMMON = b"S5Lg"
_PAX_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=")
_SPACES = b" " * 8
_KEPT_RECORDS = ("path", "size", "comment")
_RELEVANT_RECORDS = (b"path=", b"size=", b"GNU.sparse.")

SUM_AT = 500
"""Where `feedline pack` stores the checksum of a file in its header: in bytes that the format leaves unused."""
_SUM_MARK = b"FDL"
NO_SUM = -1


def sum_of(name: str, data: bytes | memoryview) -> int:
    """Return the checksum of a file in a shard, which includes its name."""
    return zlib.crc32(data, zlib.crc32(name.encode("utf-8", "surrogateescape")))


def sum_field(name: str, data: bytes) -> bytes:
    """Return the end of a header, with the checksum of its file."""
    return b"%s%08x\0" % (_SUM_MARK, sum_of(name, data))


class BadHeader(ValueError):
    """A block is not a header, or a malicious one."""


class Header:
    """The content of a 512-byte header block."""

    __slots__ = ("_block", "checksum", "kind", "size")

    def __init__(self, block: bytes) -> None:
        try:
            if block[154:156] != b"\0 " or block[135] not in b"\0 ":
                raise ValueError
            checksum, size = int(block[148:154], 8), int(block[124:135], 8)
        except ValueError:  # not the way most programs write it
            try:
                checksum, size = _number(block[148:156]), _number(block[124:136])
            except ValueError:
                raise BadHeader("its size or checksum is not a number") from None
        # adler32 sums bytes in C, modulo 65521; the checksum field itself counts as spaces.
        summed = block[:148] + _SPACES + block[156:]
        if (zlib.adler32(summed, 0) & 0xFFFF) != checksum % 65521 and checksum != sum(
            byte - 256 if byte > 127 else byte
            for byte in summed  # so some old programs summed
        ):
            raise BadHeader("its checksum is wrong")
        if size < 0:
            raise BadHeader(f"its size is {size}")
        self._block = block
        self.checksum = NO_SUM
        """Checksum of the content, if `feedline pack` wrote it."""
        if block[SUM_AT : SUM_AT + 3] == _SUM_MARK:
            try:
                self.checksum = int(block[SUM_AT + 3 : SUM_AT + 11], 16)
            except ValueError as exc:
                raise BadHeader(f"the checksum of its file is not hexadecimal ({exc})") from None
        self.size = size
        """Bytes of content, according to this block alone."""
        self.kind = block[156]
        if self.kind == _SPARSE:
            raise BadHeader(
                f"{self.name!r} is a sparse file, which is not supported: its size says nothing of its bytes"
            )
        if self.kind == 0 and _text(block[:100]).endswith("/"):
            self.kind = _DIRECTORY  # of old archives

    @property
    def name(self) -> str:
        """Name according to this block alone."""
        block = self._block
        name = _text(block[:100])
        return f"{_text(block[345:500])}/{name}" if block[345] else name

    @property
    def is_file(self) -> bool:
        """True for ordinary files."""
        return self.kind in _FILES

    @property
    def is_extension(self) -> bool:
        """True if the content describes the next header: a long name, or pax records."""
        return self.kind in _EXTENSIONS

    @property
    def has_content(self) -> bool:
        """True if `size` bytes follow. Directories and links have none, regardless of their size field."""
        return self.kind in _FILES or self.kind not in _SUPPORTED


def _number(field: bytes) -> int:
    first = field[0]
    if first in (0x80, 0xFF):
        number = int.from_bytes(field[1:], "big")
        return number if first == 0x80 else number - (1 << 8 * (len(field) - 1))
    text = field.partition(b"\0")[0].strip()
    return int(text, 8) if text else 0


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _note(found: dict[str, str], records: Mapping[str, str]) -> None:
    """Apply records before a file's header to its name and size. The first one wins, as in tarfile."""
    if "path" in records:
        found.setdefault("path", records["path"].rstrip("/"))
    if "size" in records:
        found.setdefault("size", records["size"])


def _pax(content: bytes) -> dict[str, str]:
    records: dict[str, str] = {}
    at = 0
    while at < len(content) and content[at]:
        found = _PAX_RECORD.match(content, at)
        length = int(found[1]) if found else 0
        if found is None or at + length > len(content) or at + length <= found.end() or content[at + length - 1] != 10:
            raise BadHeader("its pax records are damaged")
        name = found[2].decode("utf-8", "surrogateescape")
        if name.startswith("GNU.sparse."):
            raise BadHeader("it is a sparse file, which is not supported: its size says nothing about its bytes")
        records[name] = content[found.end() : at + length - 1].decode("utf-8", "surrogateescape")
        at += length
    return records


def _whole(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        raise BadHeader(f"its size is {text!r}") from None
    if size < 0:
        raise BadHeader(f"its size is {size}")
    return size


_PIECE = 1 << 16
"""Bytes to check at a time after the end mark."""
_MOST_ZEROS = 1 << 20
"""The most bytes after the last file: programs write 1 to 20 KB, or as many as their option for tapes says."""


class Members:
    """Iterates over the ordinary files of a shard.

    Args:
        stream: the bytes of the shard, at the beginning of a header.
        shard: its name, for errors.
        size: bytes of the shard if known, to check headers against.
        limit: the most bytes that the files of a sample may have, unless the bytes of the shard are known to be
            present.

    Attributes after `advance`: `name`, `start` (the offset of its first header), `offset`, `size` and `checksum` (of
    its content; -1 if it has none).
    """

    def __init__(self, stream: ByteReader, shard: str, *, size: int | None, limit: int | None) -> None:
        self._stream = stream
        self._shard = shard
        self._shard_size = size
        self._limit = limit
        # For the three comparisons per file, without a call.
        self._end = math.inf if size is None else size
        self.most = math.inf if limit is None else limit
        """The most bytes that the files of a sample may have."""
        self._common: dict[str, str] = {}
        self._is_over = False
        self._rest = 0
        """Bytes up to the next header."""
        self.name = ""
        self.start = self.offset = stream.offset
        self.size = 0
        self.checksum = NO_SUM

    def advance(self) -> bool:
        """Advance to the next file; False if there is none. Raises CorruptSource: the shard is truncated or damaged."""
        if self._is_over:
            return False
        stream = self._stream
        found: dict[str, str] = {}
        """Name and size from pax records and long names."""
        self._leave()
        start = stream.offset
        while True:
            here = stream.offset
            block = stream.take(BLOCK)
            if block == EMPTY:
                self.start = start
                self._is_over = True
                self._check_rest(here)
                return False
            if len(block) < BLOCK:
                raise self._cut_off(here + len(block))
            try:
                header = Header(block)
                if header.is_extension:
                    self._extend(found, header)
                    continue
                if self._common:
                    _note(found, self._common)
                name = found.get("path", header.name)
                size = _whole(found["size"]) if "size" in found else header.size
            except BadHeader as exc:
                raise CorruptSource(
                    f"{self._shard}: what stands at byte {here} is not the header of a file: {words(exc)}. The shard "
                    "is damaged, or no tar archive. Write it again."
                ) from None
            found = {}
            if not header.has_content:
                start = stream.offset
                continue
            offset = stream.offset
            if not 0 <= size <= self.most or offset + size > self._end:
                held = None if self._shard_size is None else max(0, self._shard_size - offset)
                self.check_limit(f"the file {name!r} at byte {here}", size, held=held)
            self._rest = -(-size // BLOCK) * BLOCK
            if header.is_file:
                break
            self._leave()
            start = stream.offset
        self.name, self.start, self.offset, self.size = name, start, offset, size
        self.checksum = header.checksum
        return True

    def _check_rest(self, end: int) -> None:
        """Read to the end of the shard. Only zeros may follow the end mark; compressed shards end with a checksum."""
        while rest := self._stream.take(_PIECE):
            if self._stream.offset - end > _MOST_ZEROS:
                raise CorruptSource(
                    f"{self._shard}: more than {_MOST_ZEROS} bytes of zeros stand behind byte {end}, where an archive "
                    "has a few thousand. The rest of it was overwritten, or never written. Get another copy."
                )
            if rest != bytes(len(rest)):
                raise CorruptSource(
                    f"{self._shard}: a block of zeros, which ends an archive, stands at byte {end}, but other bytes "
                    f"follow before byte {self._stream.offset}. A header was overwritten with zeros, or archives were "
                    "written one behind the other. Write the shard again; archives that belong together are shards."
                )

    def check_count(self, found: int) -> None:
        """Compare the number of samples with the one that `feedline pack` stored at the beginning of the shard.

        Raises CorruptSource: there are more or fewer.
        """
        check_count(self._shard, self._common.get("comment"), found)

    @property
    def can_be_entered(self) -> bool:
        """True if reading can start at the current header: nothing before it affects what follows."""
        return not ("path" in self._common or "size" in self._common)

    def read(self) -> bytes:
        """Return the content of the current file; once only.

        Raises CorruptSource: the shard ends within it, or its checksum differs.
        """
        data = self._stream.take(self.size)
        if len(data) < self.size:
            raise self._cut_off(self._stream.offset)
        self._rest -= self.size
        if self.checksum != NO_SUM and sum_of(self.name, data) != self.checksum:
            raise damaged(f"{self._shard}: the file {self.name!r} at byte {self.offset}")
        return data

    def _leave(self) -> None:
        rest, self._rest = self._rest, 0
        if rest and self._stream.skip(rest) < rest:
            raise self._cut_off(self._stream.offset)

    def _extend(self, found: dict[str, str], header: Header) -> None:
        """Apply a long name or pax records. Raises BadHeader: they are damaged, or describe a sparse file."""
        if header.size > EXTENSION_LIMIT:
            raise BadHeader(f"a name or pax records of {header.size} bytes are announced")
        padded = -(-header.size // BLOCK) * BLOCK
        content = self._stream.take(padded)
        if len(content) < padded:
            raise self._cut_off(self._stream.offset)
        content = content[: header.size]
        if header.kind == _LONG_NAME:
            found.setdefault("path", _text(content))
        elif header.kind == _COMMON:
            self._common.update({name: text for name, text in _pax(content).items() if name in _KEPT_RECORDS})
            check_seal(self._shard, self._common.get("comment", ""))
        # Most pax records hold times, for every file, and do not affect name, size or holes.
        elif header.kind in b"xX" and (self._common or any(one in content for one in _RELEVANT_RECORDS)):
            _note(found, {**self._common, **_pax(content)})

    def check_limit(self, what: str, size: int, *, held: int | None = None) -> None:
        """Raise CorruptSource if something in the shard is too large."""
        check_size(f"{self._shard}: {what}", size, held=held, limit=self._limit, option="max_field_bytes=")

    def _cut_off(self, offset: int) -> CorruptSource:
        return CorruptSource(
            f"{self._shard} ends at byte {offset}, where more should follow: archives end with a block of zeros. It "
            "was cut off while it was written or copied. Write or copy it again."
        )
