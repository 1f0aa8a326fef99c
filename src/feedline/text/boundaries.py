"""Where documents begin inside blocks, and what follows from it: segments and positions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Edges:
    """The places in windows at which documents begin, except the first place of each window."""

    rows: Numbers
    places: Numbers
    """Each at least 1; ascending in each row, without repeats."""
    row_count: int

    @classmethod
    def of(cls, rows: Numbers, places: Numbers, row_count: int, width: int) -> Edges:
        """Sort edges and remove duplicates, which empty documents cause."""
        flat = np.unique(rows * width + places)
        return cls(flat // width, flat % width, row_count)

    def segments(self, block: int) -> Segments:
        """Divide the first `block` places of each row into segments, one for each document."""
        inside = self.places < block
        firsts = np.arange(self.row_count, dtype=np.int64) * block
        others = self.rows[inside] * block + self.places[inside]
        starts = np.sort(np.concatenate([firsts, others]))
        lengths = np.diff(starts, append=self.row_count * block)
        return Segments(starts, lengths, np.searchsorted(starts, firsts), block)


@dataclass(frozen=True, eq=False)
class Segments:
    """The documents in rows of `block` places, all rows one after the other."""

    starts: Numbers
    lengths: Numbers
    firsts: Numbers
    """Which segment is the first of each row."""
    block: int

    def numbers(self) -> NDArray[np.int32]:
        """Return, for each place, the number of its segment in its row, from 1: packed rows use 0 for padding."""
        counts = np.diff(self.firsts, append=len(self.starts))
        numbers = np.arange(1, len(self.starts) + 1) - np.repeat(self.firsts, counts)
        return np.repeat(numbers.astype(np.int32), self.lengths).reshape(-1, self.block)

    def positions(self, lead: Numbers | None = None) -> Numbers:
        """Return, for each place, its distance from the start of its segment.

        `lead` is the number of tokens of its first document that come before each row.
        """
        starts = self.starts
        if lead is not None:
            starts = starts.copy()
            starts[self.firsts] -= lead
        places = np.arange(len(self.firsts) * self.block, dtype=np.int64)
        return (places - np.repeat(starts, self.lengths)).reshape(-1, self.block)
