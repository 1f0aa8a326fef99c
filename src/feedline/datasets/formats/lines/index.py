"""Where the lines of files are: found by reading each file once, and kept on disk.

An index holds a few numbers per block of lines, not per line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.lines.format import SPACE, mark_bytes
from feedline.datasets.framework.file_index import entry_of, kept_index
from feedline.datasets.framework.store import Cache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Place, content_of
from feedline.types import JsonObject

_FORMAT = 2
BLOCK_BYTES = 1 << 15
"""Content of a block: it is read to reach any line in it. A guess: reading 32 KB takes little longer than 1 KB."""
PACKED_BYTES = 1 << 20
"""Content of a block of a compressed file, unless a unit begins earlier: decompressing up to it takes longer."""
_LEAST_UNIT = 1 << 15
"""Units with less content than this are joined with the next ones. A guess: an entry takes 40 bytes."""
MOST_UNIT = 1 << 22
"""Files with larger units are unpacked: to reach a line, half a unit would be decompressed. A guess."""
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


@dataclass(frozen=True)
class FileIndex:
    """The lines of one file."""

    size: int
    tag: str
    packing: str
    """The compression; empty if there is none."""
    starts: Numbers
    """As `Blocks`, with the end of the file as the last one."""
    lines: Numbers
    filled: Numbers
    unit_at: Numbers
    """Where decompression can start: places in the file."""
    unit_offset: Numbers
    """The offsets of these places in the content."""

    @property
    def is_unpacked(self) -> bool:
        """True if lines are read from an unpacked copy: the file has large units. This looks at all of them."""
        units = np.append(self.unit_offset, self.starts[-1])
        return bool(self.packing) and int(np.diff(units).max()) > MOST_UNIT

    @classmethod
    def of(cls, kept: JsonObject) -> FileIndex:
        """Return the index whose `vars` were cached. Raises TypeError or ValueError: they are damaged."""
        found = cls(**kept)
        columns = (found.starts, found.lines, found.filled)
        for numbers in (*columns, found.unit_at, found.unit_offset):
            if numbers.dtype != np.int64 or numbers.ndim != 1 or not len(numbers) or numbers[0] < 0:
                raise ValueError("its columns are of another type")
            if (np.diff(numbers) < 0).any():
                raise ValueError("its numbers do not follow each other")
        if len({len(column) for column in columns}) != 1 or len(found.unit_at) != len(found.unit_offset):
            raise ValueError("its columns have different lengths")
        if found.lines[0] or found.filled[0] or (np.diff(found.filled) > np.diff(found.lines)).any():
            raise ValueError("its counts do not fit")
        if (found.starts[-1] != found.size and not found.packing) or found.unit_at[-1] > found.size:
            raise ValueError("it is of another file")
        return found

    def place(self, offset: int) -> Place:
        """Return where to begin to read an offset of the content of a compressed file."""
        unit = max(0, int(np.searchsorted(self.unit_offset, offset, side="right")) - 1)
        return Place(int(self.unit_at[unit]), int(self.unit_offset[unit]), offset)


def scan(blob: Blob) -> FileIndex:
    """Build the index of a file by reading it once. Raises CorruptSource: it is damaged."""
    content = content_of(blob)
    first = content.take(3)
    mark = mark_bytes(first, blob.name)
    found = Scan(PACKED_BYTES if content.packing else BLOCK_BYTES, mark)
    found.add(first[mark:])
    units = [Place()]
    while piece := content.take_some():
        unit = content.place(content.offset - len(piece))
        if content.packing and unit.base >= units[-1].base + _LEAST_UNIT:
            units.append(unit)
            found.cut()
        found.add(piece)
    blob.check()
    at, offsets = np.array([unit[:2] for unit in units], np.int64).T
    blocks = found.blocks()
    return FileIndex(blob.size, blob.tag, content.packing or "", *blocks, np.ascontiguousarray(at), offsets.copy())


def index_of(blob: Blob, cache: Cache) -> FileIndex:
    """Return the index of a file: the one that is kept, or a new one, which is then kept.

    Raises CorruptSource: the file is damaged.
    """
    entry = entry_of(blob, cache, "line-index", BLOCK_BYTES, PACKED_BYTES, _FORMAT)
    return kept_index(entry, FileIndex.of, partial(scan, blob))


class LineIndex:
    """The indices of all files, one after the other; it numbers samples and blocks.

    Args:
        files: the indices of the files.
        skips_blank: True if blank lines are no samples.
    """

    def __init__(self, files: Sequence[FileIndex], *, skips_blank: bool) -> None:
        self.files = list(files)
        self.is_unpacked = [one.is_unpacked for one in files]
        self.first_block: Numbers = np.cumsum([0, *(len(one.starts) - 1 for one in files)], dtype=np.int64)
        """The number of the first block of each file, and the total."""
        counts = [np.diff(one.filled if skips_blank else one.lines) for one in files]
        self.starts: Numbers = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
        """The number of the first sample of each block, and the total."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def find(self, samples: Numbers) -> tuple[Numbers, Numbers]:
        """Return the block of each sample, and its place there."""
        blocks = np.searchsorted(self.starts, samples, side="right") - 1
        return blocks, samples - self.starts[blocks]

    def place(self, block: int) -> tuple[int, int]:
        """Return the number of a block's file, and the number of the block in it."""
        file = int(np.searchsorted(self.first_block, block, side="right")) - 1
        return file, block - int(self.first_block[file])

    def group_sizes(self, group_bytes: int) -> Numbers:
        """Return how many samples there are in each group of neighbouring blocks, of about `group_bytes`."""
        cuts = [len(self.starts) - 1]
        for file, first in zip(self.files, self.first_block.tolist(), strict=False):
            turns = (file.starts[:-1] - file.starts[:1]) // group_bytes
            cuts += (first + np.flatnonzero(np.diff(turns, prepend=-1))).tolist()
        sizes = np.diff(self.starts[np.sort(cuts)])
        own: Numbers = sizes[sizes > 0]
        return own
