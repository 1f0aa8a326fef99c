"""Plans: selecting rows, statistics, and the repr."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.text.packing import Plan, plan
from tests.text.packing.reference import STRATEGIES, length_lists, row_lengths, rows_of


@given(length_lists, row_lengths, st.sampled_from(STRATEGIES), st.slices(20))
def test_a_slice_selects_rows(lengths: list[int], length: int, strategy: str, chosen: slice) -> None:
    made = plan(lengths, length, strategy)  # type: ignore[arg-type]  # a drawn strategy is any text
    assert rows_of(made[chosen]) == rows_of(made)[chosen]
    assert made[chosen].row_starts[0] == 0


@given(length_lists, row_lengths, st.data())
def test_numbers_select_rows_in_any_order(lengths: list[int], length: int, data: st.DataObject) -> None:
    made = plan([*lengths, 1], length)
    numbers = data.draw(st.lists(st.integers(-len(made), len(made) - 1), max_size=8))
    expected = [rows_of(made)[number] for number in numbers]
    assert rows_of(made[np.array(numbers, np.int64)]) == expected
    assert [rows_of(made[number])[0] for number in numbers] == expected


def test_a_row_out_of_range() -> None:
    made = plan([5, 4], 5)
    with pytest.raises(IndexError, match="2"):
        made[2]
    assert [len(row) for row in made] == [1, 1]
    assert rows_of(made[made.row_tokens < 5]) == rows_of(made)[1:], "a mask selects rows"


@given(length_lists, row_lengths, st.sampled_from(STRATEGIES))
def test_statistics_agree_with_the_pieces(lengths: list[int], length: int, strategy: str) -> None:
    made = plan(lengths, length, strategy)  # type: ignore[arg-type]  # a drawn strategy is any text
    tokens = [sum(count for _, _, count in pieces) for pieces in rows_of(made)]
    assert made.row_tokens.tolist() == tokens
    assert made.tokens == sum(tokens) == sum(lengths)
    assert len(made) == len(tokens)
    assert made.fill == (sum(tokens) / (len(tokens) * length) if tokens else 1.0)


def test_a_plan_has_a_repr_and_can_be_pickled() -> None:
    made = plan([3, 2, 1], 4)
    assert repr(made) == "Plan(2 rows of 4 tokens, 3 pieces, 75.0 % full)"
    again: Plan = pickle.loads(pickle.dumps(made))
    assert rows_of(again) == rows_of(made)
