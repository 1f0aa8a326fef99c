"""Rows of a plan: tokens, segment ids, positions and labels, compared with a loop over the tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, CollateError
from feedline.text.packing import build, plan
from tests.text.packing.reference import STRATEGIES, build_slowly, documents_of, keys, length_lists, row_lengths

strategies = st.sampled_from(STRATEGIES)


def joined(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


@given(length_lists, row_lengths, strategies, keys, st.integers(-1, 9))
def test_agrees_with_a_loop_over_the_tokens(
    lengths: list[int], length: int, strategy: Any, key: int | None, pad: int
) -> None:
    made = plan(lengths, length, strategy, key=key)
    documents = documents_of(lengths)
    batch = build(made, documents, pad=pad)
    assert {name: array.tolist() for name, array in batch.items()} == build_slowly(made, documents, pad)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert {array.shape for array in batch.values()} == {(len(made), length)}


@given(length_lists, row_lengths, strategies, st.slices(12))
def test_selected_rows_equal_those_of_the_whole_plan(
    lengths: list[int], length: int, strategy: Any, chosen: slice
) -> None:
    made = plan(lengths, length, strategy)
    documents = documents_of(lengths)
    whole = build(made, documents, labels=True)
    part = build(made[chosen], documents, labels=True)
    for name in whole:
        assert part[name].tolist() == whole[name][chosen].tolist()


@given(length_lists, row_lengths, strategies, st.booleans())
def test_labels_equal_tokens_except_for_padding_and_first_tokens(
    lengths: list[int], length: int, strategy: Any, mask_first: bool
) -> None:
    made = plan(lengths, length, strategy)
    batch = build(made, documents_of(lengths), labels=True, mask_first=mask_first)
    kept = batch["segment_ids"] > 0
    if mask_first:
        kept &= batch["positions"] > 0
    assert batch["labels"].tolist() == np.where(kept, batch["tokens"], -100).tolist()
    assert batch["labels"].dtype == np.int64


@given(length_lists, row_lengths, strategies)
def test_other_fields_are_aligned_with_their_tokens(lengths: list[int], length: int, strategy: Any) -> None:
    documents = [
        {"ids": ids, "loss_mask": ids % 3 > 0, "type": (ids % 5).astype(np.uint8), "pixels": np.stack([ids, -ids], 1)}
        for ids in documents_of(lengths)
    ]
    made = plan(lengths, length, strategy)
    if not len(made):
        return
    pad = {"ids": 1, "type": 7}
    batch = build(made, documents, tokens="ids", pad=pad, labels=True, mask_first=False)
    ids, there = batch["ids"], batch["segment_ids"] > 0
    assert (ids[~there] == 1).all()
    assert batch["type"].tolist() == np.where(there, ids % 5, 7).tolist()
    assert batch["type"].dtype == np.uint8
    assert batch["loss_mask"].tolist() == (there & (ids % 3 > 0)).tolist()
    assert batch["pixels"].tolist() == (np.stack([ids, -ids], 2) * there[..., None]).tolist()
    assert batch["labels"].tolist() == np.where(there & (ids % 3 > 0), ids, -100).tolist()


def test_labels_of_documents_take_precedence() -> None:
    documents = [{"tokens": [5, 6, 7], "labels": [-100, 60, 70]}, {"tokens": [8, 9], "labels": [80, 90]}]
    made = plan([3, 2], 6)
    assert build(made, documents)["labels"].tolist() == [[-100, 60, 70, 80, 90, -100]]
    assert build(made, documents, labels=True)["labels"].tolist() == [[-100, 60, 70, -100, 90, -100]]


@given(st.lists(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3), max_size=8))
def test_segments_within_documents_stay_separate(units: list[list[list[int]]]) -> None:
    documents: list[dict[str, Any]] = [
        {"tokens": joined(unit), "segment": np.repeat(np.arange(len(unit)) * 3, [len(part) for part in unit])}
        for unit in units
    ]
    made = plan([len(document["tokens"]) for document in documents], 14)
    if not len(made):
        return
    batch = build(made, documents, labels=True)
    assert "segment" not in batch
    for number, row in enumerate(made):
        parts = [part for document in row.documents for part in units[document]]
        size = sum(map(len, parts))
        assert batch["tokens"][number, :size].tolist() == joined(parts)
        assert batch["segment_ids"][number, :size].tolist() == [
            segment for segment, part in enumerate(parts, 1) for _ in part
        ]
        assert batch["positions"][number, :size].tolist() == [place for part in parts for place in range(len(part))]
        assert batch["labels"][number, :size].tolist() == joined([[-100, *part[1:]] for part in parts])
        assert not batch["segment_ids"][number, size:].any()


@pytest.mark.parametrize(("strategy", "too_long"), [("concat", "cut"), ("best_fit", "cut"), ("best_fit", "truncate")])
def test_documents_with_several_segments_are_not_cut(strategy: Any, too_long: Any) -> None:
    document = {"tokens": [1, 2, 3, 4, 5], "segment": [1, 1, 1, 2, 2]}
    with pytest.raises(BadOption, match="too_long='drop' or 'raise'"):
        build(plan([5], 4, strategy, too_long=too_long), [document])


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(np.uint8, np.int32), (np.uint16, np.int32), (np.int32, np.int32), (np.uint32, np.int64), (np.uint64, np.int64)],
)
def test_tokens_have_a_dtype_that_models_accept(dtype: Any, result: Any) -> None:
    batch = build(plan([2], 3), [np.array([200, 7], dtype)], pad=-1)
    assert batch["tokens"].tolist() == [[200, 7, -1]]
    assert batch["tokens"].dtype == result


def test_documents_of_different_types() -> None:
    documents: dict[int, Any] = {0: np.array([1, 2], np.uint16), 1: [3], 2: torch.tensor([4]), 3: (5, 6)}
    batch = build(plan([2, 1, 1, 2], 6), documents)
    assert batch["tokens"].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert batch["tokens"].dtype == np.int64


FIELDS = [{"tokens": [1, 2], "x": np.array([1, 2], np.uint8)}] * 2


@pytest.mark.parametrize(
    ("documents", "options", "error", "named"),
    [
        ([[1, 2], [3]], {}, CollateError, "Document 1 .* field 'tokens'"),
        ([[1, 2], 7], {}, CollateError, "Document 1 "),
        ([[1, 2], {"tokens": [1, 2]}], {}, CollateError, "Document 1 "),
        ([{"tokens": [1, 2]}, [1, 2]], {}, CollateError, "Document 1 "),
        ([{"tokens": [1, 2]}, {"tokens": [1, 2], "x": [1, 2]}], {}, CollateError, r"\['tokens', 'x'\]"),
        ([{"tokens": [1, 2], "x": [1]}] * 2, {}, CollateError, "Document 0 .* field 'x'"),
        ([[1, 2], [[1], [2]]], {}, CollateError, "field 'tokens'"),
        ([[1, 2], [1.0, 2.0]], {}, CollateError, "'tokens' .*float64"),
        ([[1, 2], "ab"], {}, CollateError, "Document 1 "),
        ([{"ids": [1, 2]}] * 2, {}, BadOption, "'tokens'"),
        ([{"tokens": [1, 2], "positions": [1, 2]}] * 2, {}, BadOption, "'positions'"),
        ([[1, 2]] * 2, {"pad": {"x": 1}}, BadOption, "pad .*'x'"),
        ([[1, 2]] * 2, {"pad": 0.5}, BadOption, "padding value 0.5"),
        (FIELDS, {"pad": {"x": -1}}, BadOption, "'x' .*uint8 .*padding value -1"),
    ],
)
def test_bad_documents_and_options_are_rejected(
    documents: Any, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        build(plan([2, 2], 5), documents, **options)


def test_padding_may_be_nan() -> None:
    batch = build(plan([1], 2), [{"tokens": [1], "weight": np.array([0.5])}], pad={"weight": float("nan")})
    assert np.isnan(batch["weight"]).tolist() == [[False, True]]
