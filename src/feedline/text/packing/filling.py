"""Fill the rows of a plan with tokens, and record which token belongs to which document.

Every field is written once: its pieces, and the padding at the ends of rows, are concatenated into the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feedline.errors import BadOption, CollateError
from feedline.text.packing.documents import LABELS, LOSS_MASK, SEGMENT, TOKENS, Document, Documents, Field
from feedline.text.packing.rows import Array, Layout, Plan

IGNORED = -100
"""The label without loss: the default `ignore_index` of torch's cross-entropy and of Hugging Face's models."""


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
    layout = segments = Layout(plan.counts, plan.row_starts, plan.length)
    if SEGMENT in fields:
        segments = Layout.of_segments(plan, fields.pop(SEGMENT))
    types = {name: _type_of(pieces) for name, pieces in fields.items()}
    types[tokens] = _token_type(fields[tokens], tokens)
    batch = {name: layout.filled(name, pieces, types[name], padding.get(name, 0)) for name, pieces in fields.items()}
    if labels:
        batch[LABELS] = layout.filled(LABELS, fields.get(LABELS, fields[tokens]), np.dtype(np.int64), IGNORED)
        if LOSS_MASK in batch:
            batch[LABELS][batch[LOSS_MASK] == 0] = IGNORED
        if mask_first:
            batch[LABELS].reshape(-1, *batch[LABELS].shape[2:])[segments.starts()] = IGNORED
    return {**batch, "segment_ids": segments.segment_ids(), "positions": segments.positions()}


def _pieces(plan: Plan, documents: Documents, tokens: str) -> dict[str, list[Array]]:
    """Return the pieces of each field of the documents."""
    numbers = plan.documents.tolist()
    found = [documents[number] for number in numbers]
    cuts = list(zip(plan.starts.tolist(), plan.counts.tolist(), numbers, strict=True))
    first = found[0] if found else ()
    if not isinstance(first, Mapping):
        return {tokens: [_piece(document, tokens, *cut) for document, cut in zip(found, cuts, strict=True)]}
    mappings = [_same_fields(document, first, number) for document, number in zip(found, numbers, strict=True)]
    return {
        name: [_piece(mapping[name], name, *cut) for mapping, cut in zip(mappings, cuts, strict=True)] for name in first
    }


def _piece(field: Document, name: str, start: int, count: int, number: int) -> Array:
    array = np.asarray(field)
    size = len(array) if array.ndim else -1
    if size == count and start == 0:
        return array
    if isinstance(field, Mapping):
        raise CollateError(f"Document {number} is a mapping, but others are arrays. Use one kind for all documents.")
    if size < start + count:
        raise CollateError(
            f"Document {number} has {max(size, 0)} values in field {name!r}, but the plan uses the tokens from {start} "
            f"to {start + count}. Plan with the lengths of these documents, which document_lengths() returns."
        )
    if name == SEGMENT:
        raise BadOption(
            f"Document {number} has sequences that must stay in one row, but the plan puts only tokens {start} to "
            f"{start + count} of {size} into this row. Plan with strategy='best_fit' and too_long='drop' or 'raise'."
        )
    return array[start : start + count]


def _same_fields(document: Document, first: Mapping[str, object], number: int) -> Mapping[str, Field]:
    if isinstance(document, Mapping) and document.keys() == first.keys():
        return document
    fields = f"the fields {sorted(document)}" if isinstance(document, Mapping) else "no fields"
    raise CollateError(
        f"Document {number} has {fields}, but the first one of the batch has {sorted(first)}. "
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


def _token_type(pieces: list[Array], name: str) -> np.dtype[np.generic]:
    types = {piece.dtype for piece in pieces}
    wrong = [dtype for dtype in types if dtype.kind not in "iu"]
    if wrong:
        raise CollateError(f"Field {name!r} has {wrong[0]} values, which are not token ids. Tokenize text first.")
    return np.dtype(np.int32 if all(np.can_cast(dtype, np.int32) for dtype in types) else np.int64)


def _type_of(pieces: list[Array]) -> np.dtype[np.generic]:
    return np.result_type(*{piece.dtype for piece in pieces}) if pieces else np.dtype(np.int32)
