"""Where the pieces of a batch lie in its rows, and arrays with that layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CollateError
from feedline.text.packing.rows import Numbers, Plan

# Any: fields of any type, with which users calculate.
Array = NDArray[Any]


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
