"""A token file that is open in this process: its tokens and document offsets, mapped into memory.

Pages are read when they are touched. While that happens from a disk, the next blocks of a batch are requested ahead, so
that the disk reads them at the same time. Nothing is requested ahead while all pages are in memory, where requests
would take longer than reading.

If a file is truncated while it is mapped, a process that reads the missing part is killed (SIGBUS). No check can rule
that out, so a file's size is checked when it is opened, and not again.
"""

from __future__ import annotations

import functools
import mmap
import os
import resource

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from feedline.errors import CorruptSource
from feedline.text.token_file import TokenFile, opened

Tokens = NDArray[np.unsignedinteger]
Numbers = NDArray[np.int64]

_PAGE = mmap.ALLOCATIONGRANULARITY
_COLD_READS = 64
"""After a read that waited for the disk, blocks are requested ahead for this many reads."""
_SCATTERED = 8
"""A batch whose blocks are spread over this many times their size is read in random order. A guess, not measured."""


class MappedTokens:
    """The tokens of one file. Threads may share it. Dropping the last reference unmaps the file.

    Raises SourceChanged: the file has changed since it was described; SourceError: it is gone; CorruptSource: it is
    incomplete.
    """

    def __init__(self, file: TokenFile) -> None:
        file.check_unchanged()
        self.file = file
        with opened(file.path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < file.size:
                raise CorruptSource(f"{file.path} is truncated: it has {size:,} of {file.size:,} bytes. Get it again.")
            self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) if size else None
        self.tokens: Tokens = np.ndarray((file.token_count,), file.dtype, self._map or b"", file.tokens_at)
        self._windows: dict[int, Tokens] = {}
        self._cold = 0
        """For how many more reads blocks are requested ahead."""
        self._is_scattered = False
        """True if the system knows that reads are in random order."""

    @functools.cached_property
    def offsets(self) -> Numbers:
        """The first token of each document, and the number of tokens."""
        assert self.file.document_count is not None  # callers have checked that
        return np.ndarray((self.file.document_count + 1,), "<i8", self._map, self.file.offsets_at)

    def windows(self, starts: Numbers, width: int) -> Tokens:
        """Return `width` tokens from each start, one row per start. All of them must be in the file."""
        view = self._windows.get(width)
        if view is None:
            count, step = max(0, len(self.tokens) - width + 1), self.tokens.strides[0]
            view = self._windows[width] = as_strided(self.tokens, (count, width), (step, step), writeable=False)
        before = _disk_reads()
        if self._cold:
            self._request(starts, width)
        found = view[starts]
        if _disk_reads() != before:
            self._cold = _COLD_READS
        elif self._cold:
            self._cold -= 1
        return found

    def _request(self, starts: Numbers, width: int) -> None:
        """Ask the system to read these tokens soon."""
        if self._map is None or len(starts) < 2:
            return
        is_scattered = bool(starts.max() - starts.min() > _SCATTERED * len(starts) * width)
        if is_scattered != self._is_scattered:
            # By default, the system reads 128 KiB around each page: right for a scan, 30 times too much for a block.
            self._map.madvise(mmap.MADV_RANDOM if is_scattered else mmap.MADV_NORMAL)
            self._is_scattered = is_scattered
        item, begin = self.file.token_bytes, self.file.tokens_at
        firsts = (begin + starts * item) // _PAGE * _PAGE
        sizes = begin + (starts + width) * item - firsts
        for first, size in zip(firsts.tolist(), sizes.tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, first, size)


def _disk_reads() -> int:
    """Return how often this thread has waited for a page from a disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
