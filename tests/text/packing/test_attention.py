"""Masks, tested with a small transformer: a document has the same outputs and loss packed and alone."""

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
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from feedline.errors import BadOption, MissingExtra
from feedline.text.packing import attention_mask, block_mask, build, cu_seqlens, plan
from tests.sampling import examples
from tests.text.packing.reference import STRATEGIES, documents_of, length_lists, row_lengths

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")

VOCABULARY = 50
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Transformer(nn.Module):
    """Two layers of attention with two heads, and embeddings of tokens and positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(128, width)
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        hidden: Tensor = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in layer(hidden).chunk(3, dim=-1))
            hidden = hidden + functional.relu(attend(query, key, value).transpose(1, 2).flatten(2))
        out: Tensor = self.head(hidden)
        return out


def attend_densely(segment_ids: Tensor) -> Attend:
    mask = attention_mask(segment_ids)
    return lambda query, key, value: functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend_in_blocks(segment_ids: Tensor) -> Attend:
    mask = block_mask(segment_ids, block_size=16)
    # Any: it also returns a tuple, with other options.
    made: Callable[..., Any] = flex.flex_attention
    return lambda query, key, value: made(query, key, value, block_mask=mask)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss of a causal model, shifted as in the models of Hugging Face."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "attend",
    [attend_densely, pytest.param(attend_in_blocks, marks=pytest.mark.slow)],  # PyTorch imports its compiler
)
@torch.no_grad()
def test_packed_documents_have_the_same_outputs_and_loss_as_alone(
    strategy: Any, attend: Callable[[Tensor], Attend]
) -> None:
    torch.manual_seed(0)
    model = Transformer()
    lengths = [5, 30, 1, 12, 48, 17, 9, 40, 22]
    documents = [np.random.default_rng(size).integers(1, VOCABULARY, size) for size in lengths]
    made = plan(lengths, 48, strategy)
    batch = {name: torch.as_tensor(array) for name, array in build(made, documents, labels=True).items()}
    packed = model(batch["tokens"], batch["positions"], attend(batch["segment_ids"]))
    assert packed.isfinite().all()
    loss = torch.zeros(())
    for number, row in enumerate(made):
        pieces = zip(row.documents, row.starts, row.counts, strict=True)
        for segment, (document, start, count) in enumerate(pieces, 1):
            tokens = torch.as_tensor(documents[document][start : start + count])[None]
            alone = model(
                tokens,
                torch.arange(count)[None],
                lambda query, key, value: functional.scaled_dot_product_attention(query, key, value, is_causal=True),
            )
            here = batch["segment_ids"][number] == segment
            torch.testing.assert_close(packed[number][here], alone[0], atol=1e-5, rtol=0)
            loss += loss_of(alone, tokens)
    torch.testing.assert_close(loss_of(packed, batch["labels"]), loss, atol=1e-3, rtol=1e-6)
    crossing = build(made, documents, labels=True, mask_first=False)["labels"]
    assert loss_of(packed, torch.as_tensor(crossing)) > loss + 1, "predicting first tokens must increase the loss"


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([2, 4, 16]),
    st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
@example(runs=[[5]], causal=True, block_size=2, ascending=True)
@example(runs=[[5]], causal=False, block_size=2, ascending=True)
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
    with pytest.raises(BadOption, match="must be rows x length of integers"):
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
