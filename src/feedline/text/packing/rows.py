"""Plan: which tokens of which documents make up which row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from feedline.system.shown import counted, percent

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Which documents, and which slice of each, go into which row.

    A piece is a slice of one document that lies in one row. Pieces are sorted by row. Within a row they are in the
    order of the documents in the source, and there is no gap between them: padding is at the end of a row only.

    `plan[8:16]` and `plan[[3, 1]]` are plans of these rows only. Iterating over a plan yields plans of one row.

    Example:
        >>> from feedline.text.packing import plan
        >>> made = plan([3, 4, 1, 2], 5, "best_fit")
        >>> made
        Plan(2 rows of 5 tokens, 4 pieces, 100.0 % full)
        >>> [row.documents.tolist() for row in made]
        [[0, 3], [1, 2]]
    """

    documents: Numbers
    """The number of each piece's document."""
    starts: Numbers
    """Where each piece starts in its document."""
    counts: Numbers
    """The number of tokens of each piece, at least 1."""
    row_starts: Numbers
    """Where each row starts among the pieces; at the end, the number of pieces."""
    length: int
    """The tokens that fit into a row."""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def __iter__(self) -> Iterator[Plan]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: SupportsIndex | slice | list[int] | Numbers | NDArray[np.bool_]) -> Plan:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step == 1:  # without a table of all rows
                return self._between(first, max(first, last))
        elif isinstance(index, (int, np.integer)) and 0 <= index < len(self):
            return self._between(int(index), int(index) + 1)
        rows = np.atleast_1d(np.arange(len(self))[index])
        sizes = np.diff(self.row_starts)[rows]
        row_starts = _ends(sizes)
        pieces = np.arange(row_starts[-1]) + np.repeat(self.row_starts[rows] - row_starts[:-1], sizes)
        return Plan(self.documents[pieces], self.starts[pieces], self.counts[pieces], row_starts, self.length)

    def _between(self, first: int, last: int) -> Plan:
        row_starts = self.row_starts[first : last + 1]
        pieces = slice(row_starts[0], row_starts[-1])
        return Plan(
            self.documents[pieces], self.starts[pieces], self.counts[pieces], row_starts - row_starts[0], self.length
        )

    @property
    def row_tokens(self) -> Numbers:
        """The number of tokens in each row, without padding."""
        return np.diff(_ends(self.counts)[self.row_starts])

    @property
    def tokens(self) -> int:
        """The number of tokens in all rows, without padding."""
        return int(self.counts.sum())

    @property
    def fill(self) -> float:
        """The share of all rows that is not padding; 1.0 if there are no rows."""
        return self.tokens / (len(self) * self.length) if len(self) else 1.0

    def __repr__(self) -> str:
        rows, tokens = counted(len(self), "row"), counted(self.length, "token")
        return f"Plan({rows} of {tokens}, {counted(len(self.counts), 'piece')}, {percent(self.fill, 1)} full)"


def _ends(sizes: Numbers) -> Numbers:
    """Return where each of these sizes starts, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes)))
