"""Where the lines of files are: found by reading each file once, and cached on disk.

An index belongs to a file with a certain name, size and tag (modification time, entity tag). If one of these differs,
or the index file is damaged, the index is rebuilt. It holds a few numbers per block of lines, not per line.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedline.datasets.formats.lines.inflating import Inflating, Point, packing_in
from feedline.datasets.formats.lines.scan import Numbers, Scan
from feedline.datasets.formats.lines.sections import without_mark
from feedline.datasets.framework.cache_file import Cache, CacheFile
from feedline.datasets.storage.addresses import identity_of
from feedline.datasets.storage.blob import Blob, LocalBlob
from feedline.types import JsonObject

_FORMAT = 1
BLOCK_BYTES = 1 << 15
"""Content of a block: it is read to reach any line in it. A guess: reading 32 KB takes little longer than 1 KB."""
PACKED_BYTES = 1 << 20
"""Content of a block of a compressed file, unless a unit begins earlier: decompressing up to it takes longer."""
_LEAST_UNIT = 1 << 15
"""Units with less content than this are joined with the next ones. A guess: an entry takes 40 bytes."""
_LOCAL_CHUNK = 1 << 20
_REMOTE_CHUNK = 1 << 23


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

    def before(self, offset: int) -> Point:
        """Return the last place at or before an offset where decompression can start."""
        unit = max(0, int(np.searchsorted(self.unit_offset, offset, side="right")) - 1)
        return Point(int(self.unit_at[unit]), int(self.unit_offset[unit]))


def chunks_of(blob: Blob, start: int = 0, size: int | None = None) -> Callable[[], bytes]:
    """Return a function that returns the bytes of a blob in chunks of some size, and none at its end."""
    size = size or (_LOCAL_CHUNK if blob.is_local else _REMOTE_CHUNK)
    places = itertools.count(start, size)

    def next_chunk() -> bytes:
        at = next(places)
        stop = min(at + size, blob.size)
        if isinstance(blob, LocalBlob):
            blob.hint(stop, stop + size)
        return blob.read(at, stop) if at < stop else b""

    return next_chunk


def scan(blob: Blob) -> FileIndex:
    """Build the index of a file by reading it once. Raises CorruptSource: it is damaged."""
    head = blob.read(0, min(8, blob.size))
    packing = packing_in(head)
    pieces = Inflating(packing, chunks_of(blob), blob.name)
    first = b""
    while len(first) < 3 and (piece := pieces.next_piece()):
        first += piece
    mark = without_mark(first, blob.name)
    found = Scan(BLOCK_BYTES if packing is None else PACKED_BYTES, mark)
    found.add(first[mark:])
    units = [Point(0, 0)]
    while piece := pieces.next_piece():
        if packing is not None and pieces.point.offset >= units[-1].offset + _LEAST_UNIT:
            units.append(pieces.point)
            found.cut()
        found.add(piece)
    blob.check()
    at, offsets = np.array(units, np.int64).T
    blocks = found.blocks()
    return FileIndex(blob.size, blob.tag, packing or "", *blocks, np.ascontiguousarray(at), offsets.copy())


def index_of(blob: Blob, cache: Cache) -> FileIndex:
    """Return the index of a file: the cached one if it is still valid, or a new one, which is then cached.

    Raises CorruptSource: the file is damaged.
    """
    name = os.path.realpath(blob.name) if blob.is_local else identity_of(blob.address)
    about = {"lines": name, "block": [BLOCK_BYTES, PACKED_BYTES], "format": _FORMAT}
    file = CacheFile.at(cache, "line-index", about) if blob.tag else None
    if file is None:  # without a tag, a stale cached index could not be detected
        return scan(blob)
    kept = file.read_as(FileIndex.of, blob.stamp)
    if kept is not None and (kept.size, kept.tag) == (blob.size, blob.tag):
        return kept
    made = scan(blob)
    file.write(vars(made), blob.stamp)
    return made


class LineIndex:
    """The indices of all files, one after the other; it numbers samples and blocks.

    Args:
        files: the indices of the files.
        skips_blank: True if blank lines are no samples.
    """

    def __init__(self, files: Sequence[FileIndex], *, skips_blank: bool) -> None:
        self.files = list(files)
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
