"""Masks and lengths that let a token see only the tokens of its document."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from feedline.errors import BadOption, MissingExtra
from feedline.text.packing import attention_mask, block_mask, build, cu_seqlens, plan
from tests.sampling import examples
from tests.text.packing.reference import STRATEGIES, documents_of, length_lists, row_lengths


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([2, 4, 16]),
    st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
@example(runs=[[5]], causal=True, block_size=2, ascending=True)
@example(runs=[[5]], causal=False, block_size=2, ascending=True)
@pytest.mark.slow
def test_block_mask_equals_torchs(runs: list[list[int]], causal: bool, block_size: int, ascending: bool) -> None:
    """Also for ids in any order, for fully masked blocks, and for lengths that are not a multiple of the block size."""
    rows = [np.repeat(np.arange(1, len(row) + 1), row) for row in runs]
    length = max(max(map(len, rows)), 1)
    ids = torch.zeros(len(rows), length, dtype=torch.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.as_tensor(row)
    if not ascending:
        ids = ids.flip(1) % 3
    made = block_mask(ids, causal=causal, block_size=block_size)

    def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = ids[row, query] == ids[row, key]
        return same & (query >= key) if causal else same

    expected = flex.create_block_mask(allowed, len(rows), None, length, length, device="cpu", BLOCK_SIZE=block_size)
    assert made.shape == expected.shape
    if ascending:
        assert made.to_dense().tolist() == expected.to_dense().tolist()
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert getattr(made, name).tolist() == getattr(expected, name).tolist(), name
    assert (made.to_dense() >= expected.to_dense()).all()
    dense = flex.create_mask(made.mask_mod, len(rows), 1, length, length, device="cpu")
    assert dense.tolist() == attention_mask(ids, causal=causal).tolist()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_mask_is_right_for_every_pair(causal: bool) -> None:
    ids = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 2, 3, 4, 5, 6, 7]])
    expected = [
        [[[a == b and (not causal or j <= i) for j, b in enumerate(row)] for i, a in enumerate(row)]]
        for row in ids.tolist()
    ]
    mask = attention_mask(ids, causal=causal)
    assert mask.tolist() == expected
    assert (mask.dtype, mask.shape) == (torch.bool, (2, 1, 7, 7))


@pytest.mark.parametrize("make", [attention_mask, block_mask])
@pytest.mark.parametrize("ids", [np.ones(4, np.int32), np.ones((1, 4), np.float32), np.ones((0, 4), np.int32)])
def test_rejects_invalid_segment_ids(make: Callable[[Any], object], ids: Any) -> None:
    with pytest.raises(BadOption, match="integers"):
        make(ids)
    with pytest.raises(BadOption, match="block_size=0"):
        block_mask(np.ones((1, 4), np.int32), block_size=0)
    with pytest.raises(BadOption, match=r"shape \(1, 1, 2\)"):
        cu_seqlens(np.ones((1, 1, 2), np.int32))


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"feedline\[torch\]"):
        attention_mask(np.ones((1, 4), np.int32))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    with pytest.raises(BadOption, match="FlexAttention"):
        block_mask(np.ones((1, 4), np.int32))


# -- lengths ---


@given(length_lists, row_lengths, st.sampled_from(STRATEGIES), st.booleans())
def test_agrees_with_the_tokens(lengths: list[int], length: int, strategy: Any, padding: bool) -> None:
    ids = build(plan(lengths, length, strategy), documents_of(lengths))["segment_ids"]
    runs = [len(list(tokens)) for row in ids.tolist() for segment, tokens in groupby(row) if segment or padding]
    found = cu_seqlens(ids, padding=padding)
    assert found.cu_seqlens.tolist() == np.cumsum([0, *runs]).tolist()
    assert found.cu_seqlens.dtype == np.int32
    assert found.max_seqlen == max(runs, default=0)
    assert found.cu_seqlens[-1] == (ids.size if padding else np.count_nonzero(ids))


def test_equal_ids_in_two_rows_are_two_documents() -> None:
    assert cu_seqlens(np.array([[1, 1], [1, 1]])).cu_seqlens.tolist() == [0, 2, 4]


def test_a_tensor_gives_a_tensor() -> None:
    segment_ids = np.array([[1, 1, 2, 0], [1, 2, 2, 2]])
    found = cu_seqlens(torch.from_numpy(segment_ids))
    assert isinstance(found.cu_seqlens, torch.Tensor)
    assert found.cu_seqlens.dtype == torch.int32
    assert found.cu_seqlens.tolist() == cu_seqlens(segment_ids).cu_seqlens.tolist()
    assert found.max_seqlen == 3
