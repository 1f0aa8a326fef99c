"""Bin packing, compared with the textbook algorithms, which place one document at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.text.packing.fitting import Fit, best_fit, first_fit

CAPACITY = 20
sizes = st.lists(st.integers(1, CAPACITY), max_size=60) | st.lists(st.sampled_from([3, 6, 7, 11]), max_size=60)


def placed(fit: Fit, lengths: list[int], capacity: int = CAPACITY) -> list[int]:
    """Return the row of each document, longest document first."""
    needs, counts = np.unique(lengths, return_counts=True)
    rows, repeats = fit(needs[::-1].astype(int).tolist(), counts[::-1].tolist(), capacity)
    found: list[int] = np.repeat(rows, repeats).tolist()
    return found


def free_spaces(rows: list[int], lengths: list[int]) -> list[int]:
    free = [CAPACITY] * len(set(rows))
    for row, length in zip(rows, sorted(lengths, reverse=True), strict=True):
        free[row] -= length
    return free


@given(sizes)
def test_first_fit_equals_the_textbook_algorithm(lengths: list[int]) -> None:
    free: list[int] = []
    expected = []
    for length in sorted(lengths, reverse=True):
        row = next((row for row, space in enumerate(free) if space >= length), len(free))
        if row == len(free):
            free.append(CAPACITY)
        free[row] -= length
        expected.append(row)
    assert placed(first_fit, lengths) == expected


@given(sizes)
def test_best_fit_equals_the_textbook_algorithm(lengths: list[int]) -> None:
    """Rows with equal free space are interchangeable, so the remaining spaces are compared."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [space for space in free if space >= length]
        if fitting:
            free[free.index(min(fitting))] -= length
        else:
            free.append(CAPACITY - length)
    found = placed(best_fit, lengths)
    assert sorted(free_spaces(found, lengths)) == sorted(free)


@pytest.mark.parametrize("fit", [first_fit, best_fit])
@given(lengths=sizes)
def test_rows_are_numbered_without_gaps_and_never_overflow(fit: Fit, lengths: list[int]) -> None:
    rows = placed(fit, lengths)
    assert len(rows) == len(lengths)
    assert set(rows) == set(range(len(set(rows))))
    assert all(space >= 0 for space in free_spaces(rows, lengths))


@pytest.mark.parametrize("fit", [first_fit, best_fit])
def test_many_equal_documents_take_at_most_one_step_per_row(fit: Fit) -> None:
    rows, repeats = fit([7, 3], [10_000, 10_000], CAPACITY)
    assert repeats.sum() == 20_000
    assert len(rows) == 10_000  # two steps for each of 5,000 rows, which hold two sevens and two threes
    assert set(repeats.tolist()) == {2}
