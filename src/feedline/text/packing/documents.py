"""What is packed: documents, each an array of token ids, or a mapping of arrays of equal length.

In a mapping every field has one value for each token (token ids, a loss mask, type ids). Four fields have a meaning:

| field | meaning |
|---|---|
| `tokens` | token ids; `build(tokens=...)` names another field |
| `loss_mask` | False for tokens without loss; they are left out of the labels |
| `labels` | values for the labels, instead of the tokens |
| `segment` | sequences in a document that stay in one row: a new one begins wherever the number changes |

Prompts with responses, chats, and pairs of preferred and rejected responses become documents whose `loss_mask` is True
for the tokens that the model learns to write.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


# -- conversations ---

PAIR = "pair"
CHOSEN = 1
"""The value of the field `pair` for tokens of a chosen response and its prompt; padding is 0."""
REJECTED = 2
"""The value of the field `pair` for tokens of a rejected response and its prompt."""

# Document fields: integers, and booleans for the loss mask.
Fields = dict[str, NDArray[np.generic]]


def prompt_document(sample: Mapping[str, ArrayLike], *, eos: int | None = None) -> Fields:
    """Return a prompt and its response as one document, with loss on the response.

    Args:
        sample: has token ids in `prompt` and `response`.
        eos: the token that ends a response, appended with loss; None if responses have it already.

    Raises:
        CollateError: a field is missing, or holds something other than token ids.

    Example:
        >>> document = prompt_document({"prompt": [5, 6], "response": [7]}, eos=2)
        >>> document["tokens"].tolist(), document["loss_mask"].tolist()
        ([5, 6, 7, 2], [False, False, True, True])
    """
    return _joined([(_ids_of(sample, "prompt"), False), (_ended(_ids_of(sample, "response"), eos), True)])


def chat_document(
    turns: Iterable[tuple[str, ArrayLike]], *, roles: Collection[str] = ("assistant",), eos: int | None = None
) -> Fields:
    """Return a chat as one document, with loss on the turns of the assistant.

    Args:
        turns: pairs of role and token ids. Markers of roles and turns are part of the ids.
        roles: the roles whose turns have loss.
        eos: the token that ends each turn with loss, appended with loss; None if turns have it already.

    Raises:
        CollateError: a turn is not a pair of a role and token ids.

    Example:
        >>> document = chat_document([("user", [5, 6]), ("assistant", [7]), ("user", [8]), ("assistant", [9])])
        >>> document["tokens"].tolist(), document["loss_mask"].astype(int).tolist()
        ([5, 6, 7, 8, 9], [0, 0, 1, 0, 1])
    """
    parts: list[tuple[NDArray[np.generic], bool]] = []
    for number, turn in enumerate(turns):
        role, ids = _role_and_ids(number, turn)
        parts.append((_ended(ids, eos), True) if role in roles else (ids, False))
    return _joined(parts)


def preference_document(sample: Mapping[str, ArrayLike], *, eos: int | None = None) -> Fields:
    """Return a preference pair as one document of two segments, which stay in the same row.

    The prompt is repeated before each response. The segments do not attend to each other, and positions restart in the
    second. The field `pair` is 1 for the tokens of the chosen response and its prompt, 2 for those of the rejected one
    and 0 for padding. In a row of pairs, pair k has the segment ids 2k + 1 and 2k + 2, from k = 0.

    A pair is not useful in part, so plan with "best_fit" or "first_fit" and `too_long="drop"` or "raise"; `build`
    rejects pairs that were cut.

    Args:
        sample: has token ids in `prompt`, `chosen` and `rejected`.
        eos: the token that ends a response, appended with loss; None if responses have it already.

    Raises:
        CollateError: a field is missing, or holds something other than token ids, or a response is empty.

    Example:
        >>> document = preference_document({"prompt": [5], "chosen": [6, 7], "rejected": [8]})
        >>> document["tokens"].tolist(), document["pair"].tolist()
        ([5, 6, 7, 5, 8], [1, 1, 1, 2, 2])
    """
    prompt = _ids_of(sample, "prompt")
    chosen, rejected = (_ended(_ids_of(sample, name), eos) for name in ("chosen", "rejected"))
    if not len(chosen) or not len(rejected):
        raise CollateError("A preference pair has an empty response. Remove the pair, or end responses with `eos`.")
    joined = _joined([(prompt, False), (chosen, True), (prompt, False), (rejected, True)])
    pair = np.repeat(np.array([CHOSEN, REJECTED], np.int32), [len(prompt) + len(chosen), len(prompt) + len(rejected)])
    return {**joined, PAIR: pair, SEGMENT: pair}


def _joined(parts: list[tuple[NDArray[np.generic], bool]]) -> Fields:
    if not parts:
        return {TOKENS: np.empty(0, np.int64), LOSS_MASK: np.empty(0, np.bool_)}
    lengths = [len(ids) for ids, _ in parts]
    return {
        TOKENS: np.concatenate([ids for ids, _ in parts]),
        LOSS_MASK: np.repeat([has_loss for _, has_loss in parts], lengths),
    }


def _ended(ids: NDArray[np.generic], eos: int | None) -> NDArray[np.generic]:
    return ids if eos is None else np.append(ids, np.array(eos, np.min_scalar_type(eos)))


def _role_and_ids(number: int, turn: object) -> tuple[str, NDArray[np.generic]]:
    if not isinstance(turn, (tuple, list)) or len(turn) != 2 or not isinstance(turn[0], str):
        raise CollateError(
            f"Turn {number} of a chat is {reprlib.repr(turn)}, which is not a pair of a role and token ids."
        )
    return turn[0], _ids(turn[1], f"Turn {number} of a chat, of {turn[0]!r},")


def _ids_of(sample: object, name: str) -> NDArray[np.generic]:
    if not isinstance(sample, Mapping) or name not in sample:
        found = (
            f"the fields {sorted(sample)}"
            if isinstance(sample, Mapping)
            else f"no fields: it is {reprlib.repr(sample)}"
        )
        raise CollateError(f"A sample has no token ids in {name!r}; it has {found}.")
    return _ids(sample[name], f"Field {name!r} of a sample")


def _ids(values: ArrayLike, what: str) -> NDArray[np.generic]:
    ids = np.asarray(values)
    if ids.ndim == 1 and not len(ids):
        return ids if ids.dtype.kind in "iu" else ids.astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise CollateError(
            f"{what} has shape {ids.shape} and type {ids.dtype}, but must be a list of token ids. Tokenize text first."
        )
    return ids
