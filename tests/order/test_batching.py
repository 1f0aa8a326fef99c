"""Cutting blocks of indices into batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.order.torch_order import batches_of
from feedline.types import IndexBlock

indices = st.integers(-(2**62), 2**62)


def as_blocks(lists: list[list[int]]) -> list[NDArray[np.int64]]:
    return [np.array(values, np.int64) for values in lists]


@given(st.lists(st.lists(indices, max_size=10), max_size=6), st.integers(1, 7), st.booleans())
def test_batches_hold_the_indices_in_order_however_blocks_are_cut(
    lists: list[list[int]], batch_size: int, drop_last: bool
) -> None:
    batches = list(batches_of(as_blocks(lists), batch_size, drop_last=drop_last))
    flat = [index for values in lists for index in values]
    if drop_last:
        flat = flat[: len(flat) // batch_size * batch_size]
    assert [index for batch in batches for index in batch.array.tolist()] == flat
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(0 < len(batch) <= batch_size for batch in batches)
    assert all(type(batch) is IndexBlock and batch.array.dtype == np.int64 for batch in batches)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 6))
def test_a_block_is_read_only_when_a_batch_needs_it(sizes: list[int], batch_size: int) -> None:
    """Samplers draw random numbers when they are read, so this must be as late as with single indices."""
    read = 0

    def blocks() -> Iterator[NDArray[np.int64]]:
        nonlocal read
        for size in sizes:
            read += 1
            yield np.zeros(size, np.int64)

    given_out = 0
    for batch in batches_of(blocks(), batch_size, drop_last=False):
        given_out += len(batch)
        if len(batch) == batch_size:
            needed = next(number for number in range(len(sizes) + 1) if sum(sizes[:number]) >= given_out)
            assert read == needed
