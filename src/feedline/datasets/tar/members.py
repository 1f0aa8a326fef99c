"""The files in a shard, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from feedline.datasets.form import check_count
from feedline.datasets.tar.headers import BLOCK, EMPTY, EXTENSION_LIMIT, BadHeader, Extension, Header
from feedline.errors import CorruptSource
from feedline.failures import words
from feedline.values.sizes import check_size

_PIECE = 1 << 16
"""Bytes behind the end mark that are looked at at a time."""


class Bytes:
    """Bytes that come in chunks, taken in pieces of any size."""

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
        """Leave out the next `count` bytes; returns how many there were."""
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


class Members:
    """Goes through the ordinary files of a shard.

    Args:
        stream: the bytes of the shard, at the beginning of a header.
        name: the shard's, for errors.
        size: bytes of the shard if they can be known, to hold what headers say against.
        limit: the most bytes that the files of a sample may have, unless the bytes of the shard are surely there.
        option: what raises the limit.

    Attributes after `advance`: `name`, `start` (the offset of its first header), `offset` and `size` (of its content).
    """

    def __init__(
        self, stream: Bytes, shard: str, *, size: int | None, limit: int | None, option: str = "max_field_bytes="
    ) -> None:
        self._stream = stream
        self._shard = shard
        self._shard_size = size
        self._limit = limit
        # For comparisons, of which each file has three, without a call.
        self._end = math.inf if size is None else size
        self.most = math.inf if limit is None else limit
        """The most bytes that the files of a sample may have."""
        self._option = option
        self._common: dict[str, str] = {}
        self.left_out = 0
        """Members that are no ordinary files: folders, links."""
        self._is_over = False
        self._rest = 0
        """Bytes up to the next header."""
        self.name = ""
        self.start = self.offset = stream.offset
        self.size = 0

    def advance(self) -> bool:
        """Go on to the next file; False if there is none. Raises CorruptSource: the shard is cut off or damaged."""
        if self._is_over:
            return False
        stream = self._stream
        extension: Extension | None = None
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
                    extension = extension or Extension()
                    self._extend(extension, header)
                    continue
                if extension is None and not self._common:
                    name, size = header.name, header.size
                else:
                    name, size = (extension or Extension()).settle(header, self._common)
            except BadHeader as exc:
                raise CorruptSource(
                    f"{self._shard}: what stands at byte {here} is not the header of a file: {words(exc)}. The shard "
                    "is damaged, or no tar archive. Write it again."
                ) from None
            extension = None
            if not header.is_file:
                self.left_out += 1
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
        return True

    def _check_rest(self, end: int) -> None:
        """Read on to the end of the shard. Only zeros may follow the end mark; compressed shards end with a checksum.

        Raises CorruptSource: something else follows.
        """
        while rest := self._stream.take(_PIECE):
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
    def common(self) -> Mapping[str, str]:
        """Pax records that are about all files, as far as they were read."""
        return self._common

    @property
    def can_be_entered(self) -> bool:
        """True if the shard can be read from the current header on: nothing before it is about what follows."""
        return not ("path" in self._common or "size" in self._common)

    def read(self) -> bytes:
        """Return the content of the current file; once only. Raises CorruptSource: the shard ends within it."""
        data = self._stream.take(self.size)
        if len(data) < self.size:
            raise self._cut_off(self._stream.offset)
        self._rest -= self.size
        return data

    def _leave(self) -> None:
        rest, self._rest = self._rest, 0
        if rest and self._stream.skip(rest) < rest:
            raise self._cut_off(self._stream.offset)

    def _extend(self, extension: Extension, header: Header) -> None:
        if header.size > EXTENSION_LIMIT:
            raise BadHeader(f"a name or pax records of {header.size} bytes are announced")
        padded = -(-header.size // BLOCK) * BLOCK
        content = self._stream.take(padded)
        if len(content) < padded:
            raise self._cut_off(self._stream.offset)
        extension.add(header, content[: header.size], self._common)

    def check_limit(self, what: str, size: int, *, held: int | None = None) -> None:
        """Raise CorruptSource if something in the shard is larger than it may be."""
        check_size(f"{self._shard}: {what}", size, held=held, limit=self._limit, option=self._option)

    def _cut_off(self, offset: int) -> CorruptSource:
        return CorruptSource(
            f"{self._shard} ends at byte {offset}, where more should follow: archives end with a block of zeros. It "
            "was cut off while it was written or copied. Write or copy it again."
        )
