"""Cuts the content of a file, read in order, into sections of whole lines."""

from __future__ import annotations

import bisect
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import dataclass

from feedline.datasets.formats.lines.format import SPACE, LineFormat
from feedline.datasets.formats.lines.inflating import Inflating, Point
from feedline.errors import CorruptSource

SECTION_BYTES = 1 << 20
"""Content to split into lines at a time. A guess."""


@dataclass(frozen=True)
class Section:
    """Whole lines of a file."""

    start: int
    """Offset of the first line in the decompressed content."""
    first: int
    """Number of the first line; the first line of a file is number 1."""
    lines: list[bytes]
    """Without line ends."""
    point: Point
    """Where to start decompressing to get here."""
    may_have_blank: bool = False
    """False if no line consists of white space."""
    damage: CorruptSource | None = None
    """Why the rest of the file cannot be read. It counts as one line."""

    def kept(self, line_format: LineFormat) -> list[bytes]:
        """Return the lines that are samples."""
        if not (line_format.skips_blank and self.may_have_blank):
            return self.lines
        return [line for line in self.lines if line.strip(SPACE)]

    def number(self, place: int, line_format: LineFormat) -> int:
        """Return the number of a line, given its place among those that are samples."""
        if not (line_format.skips_blank and self.may_have_blank):
            return self.first + place
        return self.first + [number for number, line in enumerate(self.lines) if line.strip(SPACE)][place]


def without_mark(head: bytes, name: str) -> int:
    """Return the size of the byte order mark at the beginning of a file. Raises CorruptSource: it is in UTF-16."""
    if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise CorruptSource(
            f"{name} is in UTF-16, but lines are read as UTF-8. Convert it: `iconv -f UTF-16 -t UTF-8`."
        )
    return len(BOM_UTF8) if head[:3] == BOM_UTF8 else 0


def split_lines(content: bytes) -> list[bytes]:
    r"""Return the lines without their ends, which are \n or \r\n.

    Example:
        >>> split_lines(b"a\r\n\nb"), split_lines(b"a\n"), split_lines(b"")
        ([b'a', b'', b'b'], [b'a'], [])
    """
    if b"\r" in content:  # which is found fifty times as fast as both together
        content = content.replace(b"\r\n", b"\n")
    lines = content.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return lines


class Sections:
    """Reads a file in order.

    Args:
        pieces: the content of the file, from a unit on.
        name: the name of the file, for errors.
        start: the offset of the line to start with.
        first: the number of that line.
        limit: the most bytes of a line. Of longer lines, a section holds one byte more than that.
    """

    def __init__(self, pieces: Inflating, name: str, *, start: int = 0, first: int = 1, limit: int) -> None:
        self._pieces = pieces
        self._name = name
        self._limit = limit
        self._start = start
        self._first = first
        self._rest = b""
        """The beginning of a line whose end has not been read yet."""
        self._points = [pieces.point]
        """Units that begin before the end of what was read."""
        self._damage: CorruptSource | None = None
        self._has_begun = False
        self._has_ended = False

    def next(self) -> Section | None:
        """Return the next lines; None at the end. Raises CorruptSource: the file is damaged."""
        if not self._has_begun:
            self._begin()
        if self._has_ended:
            return None
        pieces, size, has_end = [self._rest], len(self._rest), b"\n" in self._rest
        while self._damage is None and (size < SECTION_BYTES or not has_end):
            if size > self._limit and not has_end:
                return self._too_long(b"".join(pieces))
            try:
                piece = self._next_piece()
            except CorruptSource as exc:
                self._damage = exc
                break
            if not piece:
                self._has_ended = True
                break
            pieces.append(piece)
            size, has_end = size + len(piece), has_end or b"\n" in piece
        if self._damage is not None and not has_end:  # otherwise return the lines before it first
            raise self._damage
        content = b"".join(pieces)
        cut = len(content) if self._has_ended else content.rindex(b"\n") + 1
        self._rest = content[cut:]
        lines = split_lines(content[:cut])
        # Blank lines come before all others that begin with a visible character.
        return self._section(lines, cut, has_blank=min(lines)[:1] <= b" ") if lines else None

    def damaged(self, damage: CorruptSource) -> Section:
        """Return a section that stands for the rest of the file, which cannot be read."""
        return self._section([b""], 0, damage=damage)

    def _begin(self) -> None:
        """Go to the first line."""
        self._has_begun = True
        missing = self._start - self._pieces.offset
        while missing > 0 or (self._start == 0 and len(self._rest) < 3):
            try:
                piece = self._next_piece()
            except CorruptSource as exc:
                self._damage = exc
                return
            if not piece:
                break
            self._rest += piece[max(0, missing) :]
            missing -= len(piece)
        if missing > 0:
            raise CorruptSource(
                f"{self._name} has {self._pieces.offset} bytes of content, but the next line is at byte {self._start}: "
                "it was cut off, or is another file than the one that was read before."
            )
        if self._start == 0:
            mark = without_mark(self._rest, self._name)
            self._start, self._rest = mark, self._rest[mark:]

    def _next_piece(self) -> bytes:
        piece = self._pieces.next_piece()
        if self._points[-1] != self._pieces.point:
            self._points.append(self._pieces.point)
        return piece

    def _too_long(self, content: bytes) -> Section:
        """Return the beginning of a line that is longer than the limit, and go on after that line."""
        size, self._rest = len(content), b""
        while True:
            piece = self._next_piece()
            end = piece.find(b"\n") + 1
            size += end or len(piece)
            if end or not piece:
                self._has_ended = not piece
                self._rest = piece[end:]
                return self._section([content[: self._limit + 1]], size)

    def _section(
        self, lines: list[bytes], size: int, *, has_blank: bool = False, damage: CorruptSource | None = None
    ) -> Section:
        passed = bisect.bisect_right(self._points, self._start, key=lambda point: point.offset) - 1
        del self._points[: max(0, passed)]
        section = Section(self._start, self._first, lines, self._points[0], has_blank, damage)
        self._start += size
        self._first += len(lines)
        return section
