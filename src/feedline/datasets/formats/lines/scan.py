"""Finds where lines begin in a file, without looking at each line."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.lines.format import SPACE

_LF, _CR = b"\n\r"
Numbers = NDArray[np.int64]


class Blocks(NamedTuple):
    """Blocks of whole lines: three numbers for each, and those of the end of the file."""

    starts: Numbers
    """Offset in the content."""
    lines: Numbers
    """Number of lines before it."""
    filled: Numbers
    """Number of lines before it that are not blank."""


class Scan:
    r"""Counts lines, and cuts a file into blocks of about `block_bytes`.

    Lines that begin within the same `block_bytes` are one block, so that only the last line of a block can be longer.

    Example:
        >>> scan = Scan(4)
        >>> for chunk in (b"ab\nc", b"d\n \nef\n\ngh"):
        ...     scan.add(chunk)
        >>> [numbers.tolist() for numbers in scan.blocks()]
        [[0, 6, 11, 14], [0, 2, 4, 6], [0, 2, 3, 4]]
    """

    def __init__(self, block_bytes: int, start: int = 0) -> None:
        self._block_bytes = block_bytes
        self.offset = start
        """Bytes seen so far."""
        self._found: list[tuple[int, int, int]] = [(start, 0, 0)]
        self._cut = start + block_bytes
        """A block begins at the first line that begins here or later."""
        self._lines = self._blank = 0
        """Lines that have ended, and how many of them are blank."""
        self._is_open = False
        """True if the last line has no end yet."""
        self._is_blank = True
        """True if the line without an end is blank so far."""

    def cut(self) -> None:
        """Let a block begin with the next line that begins."""
        self._cut = min(self._cut, self.offset)

    def add(self, chunk: bytes) -> None:
        """Look at more bytes of the file."""
        if not chunk:
            return
        codes = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(codes == _LF)
        if len(ends):
            blank = self._blank_lines(chunk, codes, ends)
            self._add_blocks(ends, blank)
            self._lines += len(ends)
            self._blank += len(blank)
            self._is_blank = True
        tail = chunk[int(ends[-1]) + 1 :] if len(ends) else chunk
        self._is_open = bool(tail) or (self._is_open and not len(ends))
        self._is_blank = self._is_blank and not tail.strip(SPACE)
        self.offset += len(chunk)

    def _blank_lines(self, chunk: bytes, codes: NDArray[np.uint8], ends: Numbers) -> Numbers:
        """Return which of the lines that end in a chunk are blank."""
        firsts = codes[ends[:-1] + 1]
        blank = np.flatnonzero(firsts <= 32) + 1
        if len(blank):
            starts, stops = ends[blank - 1] + 1, ends[blank]
            is_empty = (stops == starts) | ((stops == starts + 1) & (codes[starts] == _CR))
            for place in np.flatnonzero(~is_empty).tolist():
                is_empty[place] = not chunk[int(starts[place]) : int(stops[place])].strip(SPACE)
            blank = blank[is_empty]
        if self._is_blank and not chunk[: int(ends[0])].strip(SPACE):
            blank = np.concatenate([[0], blank])
        return blank

    def _add_blocks(self, ends: Numbers, blank: Numbers) -> None:
        while True:
            place = int(np.searchsorted(ends, self._cut - 1 - self.offset))
            if place == len(ends):
                return
            start = self.offset + int(ends[place]) + 1
            before = int(np.searchsorted(blank, place, side="right"))
            lines = self._lines + place + 1
            self._found.append((start, lines, lines - self._blank - before))
            self._cut = start + self._block_bytes

    def blocks(self) -> Blocks:
        """Return the blocks, after the last chunk."""
        lines, blank = self._lines + self._is_open, self._blank + (self._is_open and self._is_blank)
        found = [one for one in self._found if one[0] < self.offset]
        starts, before, filled = np.array([*found, (self.offset, lines, lines - blank)], np.int64).T
        return Blocks(*map(np.ascontiguousarray, (starts, before, filled)))
