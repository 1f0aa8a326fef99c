"""Which arrays of a batch are views, and which get their own memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.memory.codec import LARGE_BYTES, Bytes, Reader, Views, overlapping, segment_reader

PAGE = 4096


def numbered(size: int = 4 * LARGE_BYTES) -> Bytes:
    return (np.arange(size) % 251).astype(np.uint8)


READERS = [Views, Reader, segment_reader]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("start", "size"), [(0, 1), (64, 1000), (PAGE, LARGE_BYTES), (0, 4 * LARGE_BYTES)])
def test_readers_return_the_bytes_at_a_place(kind: Callable[[Bytes], Reader], start: int, size: int) -> None:
    memory = numbered()
    part, offset = kind(memory).take(start, size)
    assert part[offset : offset + size].tolist() == memory[start : start + size].tolist()
    assert kind(memory).array(start, (size,), np.dtype(np.uint8)).tolist() == memory[start : start + size].tolist()
    assert bytes(kind(memory).peek(start, size)) == memory[start : start + size].tobytes()


@pytest.mark.parametrize(
    ("kind", "size", "is_view"),
    [
        (Views, 8, True),
        (Reader, 4 * LARGE_BYTES, False),
        (segment_reader, 8, False),
        (segment_reader, 3 * LARGE_BYTES, False),  # three quarters, so a view would waste a quarter
        (segment_reader, 4 * LARGE_BYTES - 8, True),
    ],
)
def test_large_parts_are_views_and_small_ones_copies(kind: Callable[[Bytes], Reader], size: int, is_view: bool) -> None:
    memory = numbered()
    reader = kind(memory)
    assert np.shares_memory(reader.take(0, size)[0], memory) == is_view
    assert np.shares_memory(reader.array(0, (size,), np.dtype(np.uint8)), memory) == is_view


@pytest.mark.parametrize("kind", [Reader, segment_reader])
def test_overlapping_arrays_share_one_copy(kind: Callable[[Bytes], Reader]) -> None:
    memory = numbered()
    reader = kind(memory)
    reader.join([(PAGE, 3000)])
    whole = reader.array(PAGE, (3000,), np.dtype(np.uint8))
    part = reader.array(PAGE + 1000, (5,), np.dtype(np.uint8))
    other = reader.array(0, (5,), np.dtype(np.uint8))
    assert part.tolist() == memory[PAGE + 1000 : PAGE + 1005].tolist()
    whole[:] = 7
    assert part.tolist() == [7] * 5
    assert other.tolist() == [0, 1, 2, 3, 4]
    assert not np.shares_memory(whole, memory)


Spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)


@given(Spans)
def test_ranges_are_joined_exactly_where_they_overlap(spans: list[tuple[int, int]]) -> None:
    count = np.zeros(80, int)
    for start, size in spans:
        count[start : start + size] += 1
    joined = overlapping(spans)
    for start, size in spans:
        mates = [span for span in spans if span[0] < start + size and start < span[0] + span[1]]
        inside = [span for span in joined if span[0] <= start and start + size <= span[0] + span[1]]
        assert len(inside) == (1 if len(mates) > 1 else 0)
    assert all(count[start : start + size].all() for start, size in joined)
    assert all(first[0] + first[1] <= second[0] for first, second in itertools.pairwise(joined))
