"""Plan: which tokens of which documents make up which row; and where their pieces lie in the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CollateError
from feedline.system.shown import counted, percent

Numbers = NDArray[np.int64]
# Any: fields of any type, with which users calculate.
Array = NDArray[Any]


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


class Layout:
    """Pieces one after the other in rows of one length, with padding at the ends of rows.

    Args:
        counts: the tokens of each piece.
        row_starts: where each row starts among the pieces; at the end, the number of pieces.
        length: the tokens that fit into a row.
    """

    def __init__(self, counts: Numbers, row_starts: Numbers, length: int) -> None:
        self._counts = counts
        self._row_starts = row_starts
        self._length = length
        ends = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=ends[1:])
        bounds = ends[row_starts]
        self._free = length - (bounds[1:] - bounds[:-1])

    @classmethod
    def of_segments(cls, plan: Plan, pieces: list[Array]) -> Layout:
        """Return the layout of the segments in the pieces of a plan: one begins wherever the number changes."""
        if not pieces:
            return cls(plan.counts, plan.row_starts, plan.length)
        numbers = np.concatenate(pieces)
        ends = np.cumsum(plan.counts)
        begins = np.ones(len(numbers), np.bool_)
        begins[1:] = numbers[1:] != numbers[:-1]
        begins[ends[:-1]] = True
        starts = np.flatnonzero(begins)
        row_starts = np.searchsorted(starts, np.concatenate(([0], ends))[plan.row_starts])
        return cls(np.diff(starts, append=len(numbers)), row_starts, plan.length)

    def filled(self, name: str, pieces: list[Array], dtype: np.dtype[np.generic], pad: float) -> Array:
        """Return rows with these pieces of a field, and padding."""
        shape = pieces[0].shape[1:] if pieces else ()
        out = np.empty((len(self._free), self._length, *shape), dtype)
        padding = np.full((int(self._free.max(initial=0)), *shape), _pad_value(name, dtype, pad), dtype)
        parts = self._with_padding(pieces, padding)
        try:
            np.concatenate(parts, out=out.reshape(-1, *shape), casting="same_kind")
        except (ValueError, TypeError) as exc:
            kinds = sorted({f"{piece.dtype} of shape {piece.shape[1:]}" for piece in pieces})
            raise CollateError(
                f"Documents differ in field {name!r}, whose values for a token are {', '.join(kinds)}. "
                "Give them one type and shape, or remove the field."
            ) from exc
        return out

    def _with_padding(self, pieces: list[Array], padding: Array) -> list[Array]:
        parts = [padding[:0]]
        bounds = self._row_starts.tolist()
        for row, space in enumerate(self._free.tolist()):
            parts += pieces[bounds[row] : bounds[row + 1]]
            if space:
                parts.append(padding[:space])
        return parts

    def segment_ids(self) -> NDArray[np.int32]:
        """Return the number of the piece in its row for every token, from 1; 0 for padding."""
        rows = np.arange(len(self._free))
        row_of = np.repeat(rows, self._row_starts[1:] - self._row_starts[:-1])
        places = np.arange(len(row_of))
        # The padding of a row, also of a full one, is a piece after its others.
        numbers = np.zeros(len(row_of) + len(rows), np.int32)
        numbers[places + row_of] = places - self._row_starts[row_of] + 1
        counts = np.empty(len(numbers), np.int64)
        counts[places + row_of] = self._counts
        counts[self._row_starts[1:] + rows] = self._free
        ids: NDArray[np.int32] = np.repeat(numbers, counts).reshape(-1, self._length)
        return ids

    def positions(self) -> NDArray[np.int32]:
        """Return the position in its piece for every token; 0 for padding."""
        upwards = np.arange(self._length, dtype=np.int32)
        return self.filled("positions", [upwards[:count] for count in self._counts.tolist()], upwards.dtype, 0)

    def starts(self) -> Numbers:
        """Return where pieces start in all rows, one row after the other."""
        gaps = np.repeat(np.cumsum(self._free) - self._free, self._row_starts[1:] - self._row_starts[:-1])
        starts: Numbers = np.cumsum(self._counts) - self._counts + gaps
        return starts


def _pad_value(name: str, dtype: np.dtype[np.generic], pad: float) -> int | Array:
    if pad == 0:
        return 0
    value = np.asarray(pad)
    with np.errstate(invalid="ignore"):
        cast = value.astype(dtype)
    if cast != value and value == value:
        raise BadOption(f"Field {name!r} of type {dtype} cannot hold the padding value {pad}. Choose another one.")
    return cast
