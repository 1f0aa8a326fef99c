"""What is packed: documents, each an array of token ids, or a mapping of arrays of equal length.

In a mapping every field has one value for each token (token ids, a loss mask, type ids). Four fields have a meaning:

| field | meaning |
|---|---|
| `tokens` | token ids; `build(tokens=...)` names another field |
| `loss_mask` | False for tokens without loss; they are left out of the labels |
| `labels` | values for the labels, instead of the tokens |
| `segment` | sequences in a document that stay in one row: a new one begins wherever the number changes |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CollateError

TOKENS = "tokens"
LOSS_MASK = "loss_mask"
LABELS = "labels"
SEGMENT = "segment"

Field = NDArray[np.generic] | Sequence[int]
Document = Field | Mapping[str, Field]


class Documents(Protocol):
    """Documents by number: a list, or a dict of those that are still needed."""

    def __getitem__(self, number: int, /) -> Document: ...


def document_lengths(documents: Iterable[Document]) -> NDArray[np.int64]:
    """Return the number of tokens of each document, for `plan`.

    Raises:
        CollateError: the fields of a document differ in length, or it has none.

    Example:
        >>> document_lengths([[5, 6, 7], {"tokens": [1, 2], "loss_mask": [True, False]}]).tolist()
        [3, 2]
    """
    return np.array([_length(number, document) for number, document in enumerate(documents)], np.int64)


def _length(number: int, document: Document) -> int:
    # Arrays first: asking whether something is a mapping takes longer than everything else here.
    if isinstance(document, (np.ndarray, list)) or not isinstance(document, Mapping):
        return len(document)
    lengths = {name: len(field) for name, field in document.items()}
    if len(set(lengths.values())) == 1:
        return next(iter(lengths.values()))
    found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
    raise CollateError(
        f"Document {number} cannot be packed: {found or 'it has no fields'}. "
        "Every field must have one value for each token; remove those that do not."
    )
