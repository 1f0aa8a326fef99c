"""Slow reference implementations that work token by token, and documents to pack."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.text.packing import Plan

STRATEGIES = ("concat", "first_fit", "best_fit")
WHOLE = ("first_fit", "best_fit")

length_lists = st.lists(st.integers(0, 12), max_size=40) | st.lists(st.integers(0, 60), max_size=12)
row_lengths = st.integers(1, 16)
keys = st.none() | st.integers(0, 2**64 - 1)


def log_normal(count: int, seed: int) -> NDArray[np.int64]:
    """Return log-normal lengths with a mean of 600 and a sigma of 1."""
    drawn = np.random.default_rng(seed).lognormal(np.log(600) - 0.5, 1, count)
    return np.maximum(drawn.astype(np.int64), 1)


def documents_of(lengths: list[int]) -> list[NDArray[np.int32]]:
    """Return documents in which no two tokens are equal, and none is 0."""
    ends = np.cumsum([1, *lengths])
    return [np.arange(end - length, end, dtype=np.int32) for end, length in zip(ends[1:], lengths, strict=True)]


def rows_of(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Return document, start and number of tokens of every piece of every row."""
    pieces = list(zip(plan.documents.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True))
    bounds = plan.row_starts.tolist()
    return [pieces[bounds[row] : bounds[row + 1]] for row in range(len(bounds) - 1)]


# Any: tokens of any type.
def build_slowly(plan: Plan, documents: Any, pad: int) -> dict[str, list[list[int]]]:
    batch: dict[str, list[list[int]]] = {"tokens": [], "segment_ids": [], "positions": []}
    for pieces in rows_of(plan):
        tokens, segment_ids, positions = [], [], []
        for segment, (document, start, count) in enumerate(pieces, 1):
            for place in range(count):
                tokens.append(int(documents[document][start + place]))
                segment_ids.append(segment)
                positions.append(place)
        free = plan.length - len(tokens)
        batch["tokens"].append(tokens + [pad] * free)
        batch["segment_ids"].append(segment_ids + [0] * free)
        batch["positions"].append(positions + [0] * free)
    return batch
