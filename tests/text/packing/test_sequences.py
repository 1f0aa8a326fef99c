"""Cumulative lengths, compared with a loop over the tokens."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.text.packing import build, cu_seqlens, plan
from tests.text.packing.reference import STRATEGIES, documents_of, length_lists, row_lengths


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


def test_single_row() -> None:
    assert cu_seqlens(np.array([1, 1, 2, 0])).cu_seqlens.tolist() == [0, 2, 3, 4]


def test_batch_without_rows() -> None:
    found = cu_seqlens(np.empty((0, 8), np.int32))
    assert (found.cu_seqlens.tolist(), found.max_seqlen) == ([0], 0)


def test_wrong_shape() -> None:
    with pytest.raises(BadOption, match=r"shape \(1, 1, 2\)"):
        cu_seqlens(np.ones((1, 1, 2), np.int32))


def test_a_tensor_gives_a_tensor() -> None:
    segment_ids = np.array([[1, 1, 2, 0], [1, 2, 2, 2]])
    found = cu_seqlens(torch.from_numpy(segment_ids))
    assert isinstance(found.cu_seqlens, torch.Tensor)
    assert found.cu_seqlens.dtype == torch.int32
    assert found.cu_seqlens.tolist() == cu_seqlens(segment_ids).cu_seqlens.tolist()
    assert found.max_seqlen == 3
