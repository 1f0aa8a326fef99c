"""Lengths of documents; prompts, chats and preference pairs as documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import CollateError
from feedline.text.packing import (
    build,
    chat_document,
    document_lengths,
    plan,
    preference_document,
    prompt_document,
)

ids = st.lists(st.integers(3, 99), max_size=5)
some_ids = st.lists(st.integers(3, 99), min_size=1, max_size=5)
ends = st.none() | st.just(2)


def ended(tokens: list[int], eos: int | None) -> list[int]:
    return tokens if eos is None else [*tokens, eos]


@given(ids, ids, ends)
def test_a_prompt_has_no_loss(prompt: list[int], response: list[int], eos: int | None) -> None:
    document = prompt_document({"prompt": prompt, "response": response, "id": 7}, eos=eos)
    answer = ended(response, eos)
    assert document["tokens"].tolist() == prompt + answer
    assert document["loss_mask"].tolist() == [False] * len(prompt) + [True] * len(answer)
    assert document["tokens"].dtype == np.int64


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), ids)), ends)
def test_a_chat_has_loss_only_on_the_assistant(turns: list[tuple[str, list[int]]], eos: int | None) -> None:
    document = chat_document(turns, eos=eos)
    tokens, mask = [], []
    for role, part in turns:
        part = ended(part, eos) if role == "assistant" else part
        tokens += part
        mask += [role == "assistant"] * len(part)
    assert document["tokens"].tolist() == tokens
    assert document["loss_mask"].tolist() == mask
    assert document["tokens"].dtype == np.int64


@given(st.lists(st.tuples(ids, some_ids, some_ids), min_size=1, max_size=8), ends)
def test_preference_pairs_stay_together(samples: list[tuple[list[int], ...]], eos: int | None) -> None:
    documents = [
        preference_document(dict(zip(("prompt", "chosen", "rejected"), sample, strict=True)), eos=eos)
        for sample in samples
    ]
    made = plan(document_lengths(documents), 40, "best_fit", too_long="raise")
    batch = build(made, documents)
    for number, row in enumerate(made):
        segments, pair, tokens = (batch[name][number] for name in ("segment_ids", "pair", "tokens"))
        assert segments.max() == 2 * len(row.documents)
        for place, document in enumerate(row.documents):
            prompt, chosen, rejected = samples[document]
            for which, response in ((1, chosen), (2, rejected)):
                here = segments == 2 * place + which
                assert tokens[here].tolist() == prompt + ended(response, eos)
                assert set(pair[here].tolist()) == {which}
                assert batch["positions"][number][here].tolist() == list(range(here.sum()))
                assert batch["loss_mask"][number][here].sum() == len(ended(response, eos))
        assert not pair[segments == 0].any()


def test_token_dtypes_are_kept() -> None:
    document = prompt_document({"prompt": np.array([1], np.uint16), "response": np.array([2], np.uint16)}, eos=60_000)
    assert document["tokens"].dtype == np.uint16
    assert document["tokens"].tolist() == [1, 2, 60_000]


@pytest.mark.parametrize(
    ("make", "sample", "named"),
    [
        (prompt_document, {"prompt": [1]}, r"'response'.*'prompt'"),
        (prompt_document, [1, 2], r"\[1, 2\]"),
        (prompt_document, {"prompt": "Hi", "response": [1]}, "'prompt'"),
        (prompt_document, {"prompt": [[1]], "response": [1]}, r"\(1, 1\)"),
        (prompt_document, {"prompt": [0.5], "response": [1]}, "float64"),
        (chat_document, [("user", [1]), [2, 3]], r"Turn 1 .*\[2, 3\]"),
        (chat_document, [("user", "Hi")], "Turn 0 .*'user'"),
        (preference_document, {"prompt": [1], "chosen": [], "rejected": [1]}, "empty response"),
        (preference_document, {"prompt": [1], "chosen": [1]}, "'rejected'"),
    ],
)
def test_rejects_samples_that_are_not_documents(make: Any, sample: Any, named: str) -> None:
    with pytest.raises(CollateError, match=named):
        make(sample)


def test_lengths_of_arrays_lists_tensors_and_mappings() -> None:
    documents = [[1, 2], np.arange(3), torch.arange(4), {"tokens": [1], "loss_mask": [True]}, []]
    lengths = document_lengths(documents)  # type: ignore[arg-type]  # tensors are not declared, but work
    assert lengths.tolist() == [2, 3, 4, 1, 0]
    assert lengths.dtype == np.int64
    assert document_lengths([]).tolist() == []


@pytest.mark.parametrize(
    ("document", "named"), [({"tokens": [1, 2], "loss_mask": [True]}, "'loss_mask'"), ({}, "no fields")]
)
def test_fields_of_different_lengths_are_rejected(document: dict[str, list[int]], named: str) -> None:
    with pytest.raises(CollateError, match=f"Document 1 .*{named}"):
        document_lengths([[1], document])
