"""Tar headers: 512 bytes that say what follows.

Names, sizes and types are understood as Python's tarfile does, upon which the webdataset package is built. What tarfile
takes for the end of an archive though it is damage is an error here.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

BLOCK = 512
EMPTY = bytes(BLOCK)
EXTENSION_LIMIT = 1 << 20
"""Bytes that a long name or a set of pax records may have. Paths of Linux end at 4096."""

_FILES = frozenset(b"0\x007")
_EXTENSIONS = frozenset(b"LKxgX")
_SUPPORTED = frozenset(b"0\x001234567LKSxgX")
_SPARSE, _DIRECTORY, _LONG_NAME, _COMMON = b"S5Lg"
_PAX_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=")
_SPACES = b" " * 8


class BadHeader(ValueError):
    """What stands where a header should be is none, or one that nobody wrote in good faith."""


class Header:
    """What a block of 512 bytes says of itself.

    Raises BadHeader: it is no header.
    """

    __slots__ = ("_block", "kind", "size")

    def __init__(self, block: bytes) -> None:
        try:
            if block[154:156] != b"\0 " or block[135] not in b"\0 ":
                raise ValueError
            checksum, size = int(block[148:154], 8), int(block[124:135], 8)
        except ValueError:  # not the way most programs write it
            try:
                checksum, size = _number(block[148:156]), _number(block[124:136])
            except ValueError as exc:
                raise BadHeader(f"a number in it is none ({exc})") from None
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
        self.size = size
        """Bytes of content, as far as the block itself knows."""
        self.kind = block[156]
        if self.kind == _SPARSE:
            raise BadHeader(
                f"{self.name!r} is a sparse file, which is not supported: its size says nothing of its bytes"
            )
        if self.kind == 0 and _text(block[:100]).endswith("/"):
            self.kind = _DIRECTORY  # of old archives

    @property
    def name(self) -> str:
        """As far as the block itself knows."""
        block = self._block
        name = _text(block[:100])
        return f"{_text(block[345:500])}/{name}" if block[345] else name

    @property
    def is_file(self) -> bool:
        """True for ordinary files."""
        return self.kind in _FILES

    @property
    def is_extension(self) -> bool:
        """True if the content is about the next header: a long name, or pax records."""
        return self.kind in _EXTENSIONS

    @property
    def has_content(self) -> bool:
        """True if `size` bytes follow. Directories and links have none, whatever they say."""
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


@dataclass
class Extension:
    """What headers before a file's own say about it. The first one wins, as in tarfile."""

    name: str | None = None
    size: int | None = None

    def add(self, header: Header, content: bytes, common: dict[str, str]) -> None:
        """Take in a long name or pax records; those for all files go to `common`.

        Raises BadHeader: they are damaged, or describe a sparse file.
        """
        if header.kind == _LONG_NAME:
            self._add(_text(content), None)
        elif header.kind == _COMMON:
            common.update(_pax(content))
        # Most pax records hold times, for every file, and say nothing of name, size or holes.
        elif header.kind in b"xX" and (common or any(one in content for one in (b"path=", b"size=", b"GNU.sparse."))):
            self._add_records({**common, **_pax(content)})

    def _add_records(self, records: dict[str, str]) -> None:
        name = records.get("path")
        self._add(None if name is None else name.rstrip("/"), records.get("size"))

    def _add(self, name: str | None, size: str | None) -> None:
        if self.name is None and name is not None:
            self.name = name
        if self.size is None and size is not None:
            self.size = _whole(size)

    def settle(self, header: Header, common: dict[str, str]) -> tuple[str, int]:
        """Return the name and size of the file whose own header this is."""
        if common:
            self._add_records(common)
        return (
            header.name if self.name is None else self.name,
            header.size if self.size is None else self.size,
        )


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
