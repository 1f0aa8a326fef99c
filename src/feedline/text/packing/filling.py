"""Fill the rows of a plan with tokens, and say which token belongs to which document.

Every field is written once: its pieces, and the padding at the ends of rows, are concatenated into the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CollateError
from feedline.text.packing.document import LABELS, LOSS_MASK, SEGMENT, TOKENS, Documents
from feedline.text.packing.rows import Plan

IGNORED = -100
"""The label without loss: the default `ignore_index` of torch's cross-entropy and of Hugging Face's models."""

# Any: fields of any type.
Array = NDArray[Any]


def build(
    plan: Plan,
    documents: Documents,
    *,
    tokens: str = TOKENS,
    pad: float | Mapping[str, float] = 0,
    labels: bool = False,
    mask_first: bool = True,
) -> dict[str, Array]:
    """Return the packed rows of a plan, each field as an array of rows x length.

    To build some of the rows only, choose them from the plan: `build(plan[:8], documents)`.

    The result has every field of the documents and, as in Grain and MaxText:

    - `segment_ids` (int32): 1 for the first document of a row, 2 for the second, and so on; 0 for padding;
    - `positions` (int32): the position of a token in its document, from 0; the second part of a document that was cut
      starts at 0 again; 0 for padding.

    Token ids get at least 32 bits, which torch and JAX can look up; other fields keep their type.

    Args:
        plan: the rows to make.
        documents: returns a document for its number in the plan: a list, or a dict.
        tokens: the field of token ids. It is also the name of the result if documents are bare arrays.
        pad: the padding value: the id of the padding token, or a mapping from fields to values. Other fields are padded
            with 0, and `labels` with -100.
        labels: True to add `labels` (int64): the tokens, or the documents' own field `labels`, with -100 for padding
            and wherever the field `loss_mask` is 0. They are not shifted: the models of Hugging Face do that
            themselves. If yours does not, compare the output at position i with the label at i + 1.
        mask_first: with `labels`, also -100 for the first token of every document, which would otherwise be predicted
            from the last token of the document before it.

    Raises:
        BadOption: an argument is invalid, or documents of several segments were cut.
        CollateError: a document is shorter than in the plan, or its fields are not those of the others.

    Example:
        >>> from feedline.text.packing import plan
        >>> made = plan([2, 3, 1], 4, "best_fit")
        >>> batch = build(made, [[5, 6], [7, 8, 9], [3]], labels=True)
        >>> batch["tokens"].tolist(), batch["segment_ids"].tolist()
        ([[5, 6, 0, 0], [7, 8, 9, 3]], [[1, 1, 0, 0], [1, 1, 1, 2]])
        >>> batch["positions"].tolist(), batch["labels"].tolist()
        ([[0, 1, 0, 0], [0, 1, 2, 0]], [[-100, 6, -100, -100], [-100, 8, 9, -100]])
    """
    fields = _pieces(plan, documents, tokens)
    padding = {LABELS: IGNORED, **(pad if isinstance(pad, Mapping) else {tokens: pad})}
    _check_names(fields, padding, tokens)
    segments = _Layout.of_segments(plan, fields.pop(SEGMENT, None))
    types = {name: _type_of(pieces) for name, pieces in fields.items()}
    types[tokens] = np.result_type(types[tokens], np.int32)
    layout = _Layout(plan.counts, plan.row_starts, plan.length)
    batch = {name: layout.filled(pieces, padding.get(name, 0), types[name], name) for name, pieces in fields.items()}
    if labels:
        source = fields[LABELS if LABELS in fields else tokens]
        batch[LABELS] = layout.filled(source, IGNORED, np.dtype(np.int64), LABELS)
        if LOSS_MASK in batch:
            batch[LABELS][batch[LOSS_MASK] == 0] = IGNORED
        if mask_first:
            batch[LABELS].reshape(-1)[segments.starts()] = IGNORED
    return {**batch, "segment_ids": segments.ids(), "positions": segments.positions()}


class _Layout:
    """How pieces lie in rows: the tokens of each piece, and where rows start among the pieces."""

    def __init__(self, counts: NDArray[np.int64], row_starts: NDArray[np.int64], length: int) -> None:
        self._counts = counts
        self._row_starts = row_starts
        self._length = length
        ends = np.concatenate(([0], np.cumsum(counts)))
        self._free = length - np.diff(ends[row_starts])

    @classmethod
    def of_segments(cls, plan: Plan, pieces: list[Array] | None) -> _Layout:
        """Return the layout of segments: the pieces, or parts of them where documents have a field `segment`."""
        if pieces is None or not pieces:
            return cls(plan.counts, plan.row_starts, plan.length)
        numbers = np.concatenate(pieces)
        ends = np.cumsum(plan.counts)
        begins = np.ones(len(numbers), np.bool_)
        begins[1:] = numbers[1:] != numbers[:-1]
        begins[ends[:-1]] = True
        starts = np.flatnonzero(begins)
        row_starts = np.searchsorted(starts, np.concatenate(([0], ends))[plan.row_starts])
        return cls(np.diff(starts, append=len(numbers)), row_starts, plan.length)

    def filled(self, pieces: list[Array], pad: float, dtype: np.dtype[Any], name: str) -> Array:
        """Return rows with these pieces, and padding at their ends."""
        shape = pieces[0].shape[1:] if pieces else ()
        out = np.empty((len(self._free), self._length, *shape), dtype)
        padding = np.full((int(self._free.max(initial=0)), *shape), _pad_value(pad, dtype, name), dtype)
        bounds, free = self._row_starts.tolist(), self._free.tolist()
        parts: list[Array] = []
        for row, space in enumerate(free):
            parts += pieces[bounds[row] : bounds[row + 1]]
            if space:
                parts.append(padding[:space])
        if parts:
            try:
                np.concatenate(parts, out=out.reshape(-1, *shape), casting="same_kind")
            except (ValueError, TypeError) as exc:
                shapes = sorted({piece.shape[1:] for piece in pieces}), sorted({str(piece.dtype) for piece in pieces})
                raise CollateError(
                    f"Documents differ in field {name!r}: values have the shapes {shapes[0]} and types {shapes[1]}. "
                    "Make them alike, or remove the field."
                ) from exc
        return out

    def ids(self) -> NDArray[np.int32]:
        """Return the number of the piece in its row for every token, from 1; 0 for padding."""
        sizes = np.diff(self._row_starts)
        numbers = np.arange(1, len(self._counts) + 1) - np.repeat(self._row_starts[:-1], sizes)
        padded = np.insert(numbers, self._row_starts[1:], 0).astype(np.int32)
        counts = np.insert(self._counts, self._row_starts[1:], self._free)
        ids: NDArray[np.int32] = np.repeat(padded, counts).reshape(-1, self._length)
        return ids

    def positions(self) -> NDArray[np.int32]:
        """Return the position in its piece for every token; 0 for padding."""
        upwards = np.arange(self._length, dtype=np.int32)
        pieces = [upwards[:count] for count in self._counts.tolist()]
        return self.filled(pieces, 0, upwards.dtype, "positions")

    def starts(self) -> NDArray[np.int64]:
        """Return where pieces start in all rows, one row after the other."""
        gaps = np.repeat(np.cumsum(self._free) - self._free, np.diff(self._row_starts))
        starts: NDArray[np.int64] = np.cumsum(self._counts) - self._counts + gaps
        return starts


def _pieces(plan: Plan, documents: Documents, tokens: str) -> dict[str, list[Array]]:
    """Return the pieces of each field of the documents."""
    found: dict[str, list[Array]] = {}
    for number, start, count in zip(plan.documents.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True):
        document = documents[number]
        fields = document if isinstance(document, Mapping) else {tokens: document}
        if fields.keys() != found.keys():
            if found:
                raise _other_fields(number, fields, found)
            found = {name: [] for name in fields}
        for name, pieces in found.items():
            pieces.append(_piece(fields[name], number, name, start, count))
    return found or {tokens: []}


def _piece(field: Any, number: int, name: str, start: int, count: int) -> Array:  # Any: whatever makes an array
    array = np.asarray(field)
    if array.ndim and len(array) == count and not start:
        return array
    if array.ndim and name == SEGMENT:
        raise BadOption(
            f"Document {number} has several sequences that must stay in one row, but the plan cuts it after "
            f"{start or count} of {len(array)} tokens. Plan with strategy='best_fit' and too_long='drop' or 'raise'."
        )
    if not array.ndim or len(array) < start + count:
        size = len(array) if array.ndim else "no"
        raise CollateError(
            f"Document {number} has {size} values in field {name!r}, but the plan uses tokens {start} to "
            f"{start + count}. Plan with the lengths of these documents, which document_lengths() returns."
        )
    return array[start : start + count]


def _other_fields(number: int, fields: Mapping[str, object], found: Mapping[str, object]) -> CollateError:
    return CollateError(
        f"Document {number} has the fields {sorted(fields)}, and those before it {sorted(found)}. "
        "Documents in one batch must have the same fields."
    )


def _check_names(fields: Mapping[str, object], padding: Mapping[str, float], tokens: str) -> None:
    if tokens not in fields:
        raise BadOption(f"Documents have no field {tokens!r}, only {sorted(fields)}. Name the token ids in `tokens`.")
    unknown = sorted(padding.keys() - fields.keys() - {LABELS})
    if unknown:
        raise BadOption(f"pad has a value for {unknown[0]!r}, but documents only have the fields {sorted(fields)}.")
    taken = sorted(fields.keys() & {"segment_ids", "positions"})
    if taken:
        raise BadOption(f"Documents have a field {taken[0]!r}, which packing makes itself. Rename or remove it.")


def _type_of(pieces: list[Array]) -> np.dtype[Any]:
    return np.result_type(*{piece.dtype for piece in pieces}) if pieces else np.dtype(np.int32)


def _pad_value(pad: float, dtype: np.dtype[Any], name: str) -> Any:  # Any: a scalar of that type
    value = np.asarray(pad)
    with np.errstate(invalid="ignore"):
        cast = value.astype(dtype)
    if cast != value and value == value:
        raise BadOption(f"Field {name!r} of type {dtype} cannot hold the padding value {pad}. Choose another one.")
    return cast
