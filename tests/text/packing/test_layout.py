"""How pieces are placed in rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from feedline.errors import CollateError
from feedline.text.packing import plan
from feedline.text.packing.layout import Layout
from tests.text.packing.reference import length_lists, row_lengths


@given(length_lists, row_lengths)
def test_segments_start_where_positions_are_zero(lengths: list[int], length: int) -> None:
    made = plan(lengths, length)
    layout = Layout(made.counts, made.row_starts, made.length)
    first = (layout.positions() == 0) & (layout.segment_ids() > 0)
    assert layout.starts().tolist() == np.flatnonzero(first).tolist()


@given(length_lists, row_lengths)
def test_pieces_with_one_segment_each_equal_the_segments(lengths: list[int], length: int) -> None:
    made = plan(lengths, length)
    pieces = [np.zeros(count, np.int8) for count in made.counts]
    layout, segments = Layout(made.counts, made.row_starts, made.length), Layout.of_segments(made, pieces)
    assert segments.segment_ids().tolist() == layout.segment_ids().tolist()
    assert segments.positions().tolist() == layout.positions().tolist()


def test_pieces_of_different_shapes_are_rejected() -> None:
    layout = Layout(np.array([1, 1]), np.array([0, 2]), 4)
    with pytest.raises(CollateError, match=r"field 'x', .* are float64 of shape \(2,\), float64 of shape \(3,\)"):
        layout.filled("x", [np.zeros((1, 2)), np.zeros((1, 3))], np.dtype(np.float64), 0)
