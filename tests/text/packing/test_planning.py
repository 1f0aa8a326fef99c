"""Plans: properties of all strategies, and how full the rows are."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, CollateError
from feedline.text.packing import Plan, plan
from feedline.text.packing.planning import Fit, best_fit, first_fit
from tests.text.packing.reference import STRATEGIES, WHOLE, keys, length_lists, log_normal, row_lengths, rows_of

strategies = st.sampled_from(STRATEGIES)


def tokens_of(made: Plan) -> list[tuple[int, int]]:
    """Return every token of every row, as document and place in it."""
    pieces = [piece for row in rows_of(made) for piece in row]
    return [(document, start + place) for document, start, count in pieces for place in range(count)]


@given(length_lists, row_lengths, strategies, keys)
def test_every_token_is_in_one_row(lengths: list[int], length: int, strategy: Any, key: int | None) -> None:
    made = plan(lengths, length, strategy, key=key)
    assert sorted(tokens_of(made)) == [
        (document, place) for document, size in enumerate(lengths) for place in range(size)
    ]
    assert (made.counts > 0).all()
    assert (made.row_tokens <= length).all()
    assert (np.diff(made.row_starts) > 0).all(), "no row may be empty"
    assert all(row == sorted(row) for row in rows_of(made)), "documents of a row are in the order of the source"


@given(length_lists, row_lengths)
def test_concatenated_documents_are_in_order_and_fill_every_row_but_the_last(lengths: list[int], length: int) -> None:
    made = plan(lengths, length, "concat")
    assert tokens_of(made) == sorted(tokens_of(made))
    assert (made.row_tokens[:-1] == length).all()


@given(length_lists, row_lengths, st.sampled_from(WHOLE), keys)
def test_documents_that_fit_stay_whole(lengths: list[int], length: int, strategy: Any, key: int | None) -> None:
    made = plan(lengths, length, strategy, key=key)
    for document, start, count in (piece for row in rows_of(made) for piece in row):
        assert start % length == 0
        assert count == min(lengths[document] - start, length)  # longer ones are cut into full rows and a remainder


@given(length_lists, row_lengths, strategies, st.integers(0, 2**64 - 1))
def test_the_key_changes_only_the_order_of_rows(lengths: list[int], length: int, strategy: Any, key: int) -> None:
    made = plan(lengths, length, strategy, key=key)
    assert sorted(rows_of(made)) == sorted(rows_of(plan(lengths, length, strategy)))
    assert rows_of(made) == rows_of(plan(np.array(lengths, np.uint16), length, strategy, key=key))


@pytest.mark.parametrize(("strategy", "key"), [*zip(WHOLE, (None, 5), strict=True)])
def test_rows_are_not_sorted_by_length(strategy: Any, key: int | None) -> None:
    made = plan(log_normal(4096, seed=2), 2048, strategy, key=key)
    longest = np.maximum.reduceat(made.counts, made.row_starts[:-1])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.1


@given(length_lists, row_lengths, strategies)
def test_documents_that_are_too_long_keep_their_first_tokens_or_are_dropped(
    lengths: list[int], length: int, strategy: Any
) -> None:
    # Any: mypy takes each name for any text.
    ways: dict[Any, list[int]] = {
        "truncate": [min(size, length) for size in lengths],
        "drop": [size if size <= length else 0 for size in lengths],
    }
    for too_long, sizes in ways.items():
        made = plan(lengths, length, strategy, too_long=too_long)
        expected = [(document, place) for document, size in enumerate(sizes) for place in range(size)]
        assert sorted(tokens_of(made)) == expected


@given(length_lists, row_lengths, strategies)
def test_documents_that_are_too_long_are_reported(lengths: list[int], length: int, strategy: Any) -> None:
    if max(lengths, default=0) <= length:
        made = plan(lengths, length, strategy, too_long="raise")
        assert rows_of(made) == rows_of(plan(lengths, length, strategy))
        return
    first = next(document for document, size in enumerate(lengths) if size > length)
    with pytest.raises(CollateError, match=f"{first} .*{lengths[first]}.* {length}"):
        plan(lengths, length, strategy, too_long="raise")


def test_best_fit_fills_rows_of_a_window_of_documents() -> None:
    lengths = log_normal(4096, seed=0)
    best, first = (plan(lengths, 2048, strategy) for strategy in ("best_fit", "first_fit"))
    assert best.fill >= 0.99
    assert best.fill >= first.fill
    assert plan(lengths, 2048, "best_fit", too_long="truncate").fill >= 0.99


def test_the_plan_is_the_same_on_every_machine() -> None:
    rows = [
        [(0, 0, 7), (1, 0, 3)],
        [(2, 0, 10)],
        [(2, 10, 2), (8, 0, 2)],
        [(3, 0, 5), (4, 0, 5)],
        [(5, 0, 1), (7, 0, 9)],
    ]
    lengths = [7, 3, 12, 5, 5, 1, 0, 9, 2]
    assert rows_of(plan(lengths, 10, "best_fit")) == rows
    assert rows_of(plan(lengths, 10, "best_fit", key=7)) == [rows[place] for place in (0, 2, 4, 1, 3)]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([1], 0), "length=0"),
        (([1], True), "length=True"),
        (([1], 2.0), "length=2.0"),
        (([1], 4, "worst_fit"), "strategy='worst_fit'.*'best_fit'"),
        (([1.5], 4), "float64"),
        (([[1]], 4), r"shape \(1, 1\)"),
        (([3, -2], 4), r"lengths\[1\]=-2"),
        ((["a"], 4), "integers"),
        (([1], 4, "concat", "split"), "too_long='split'.*'cut'"),
        (([1], 4, "concat", "cut", "a"), "key='a'"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(BadOption, match=named):
        plan(*arguments[:3], **dict(zip(("too_long", "key"), arguments[3:], strict=False)))


# -- fitting ---

CAPACITY = 20
some_sizes = st.lists(st.integers(1, CAPACITY), max_size=60) | st.lists(st.sampled_from([3, 6, 7, 11]), max_size=60)


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


@given(some_sizes)
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


@given(some_sizes)
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
def test_many_equal_documents_take_at_most_one_step_per_row(fit: Fit) -> None:
    rows, repeats = fit([7, 3], [10_000, 10_000], CAPACITY)
    assert repeats.sum() == 20_000
    assert len(rows) == 10_000  # two steps for each of 5,000 rows, which hold two sevens and two threes
    assert set(repeats.tolist()) == {2}


# -- rows ---


@given(length_lists, row_lengths, st.data())
def test_numbers_select_rows_in_any_order(lengths: list[int], length: int, data: st.DataObject) -> None:
    made = plan([*lengths, 1], length)
    numbers = data.draw(st.lists(st.integers(-len(made), len(made) - 1), max_size=8))
    expected = [rows_of(made)[number] for number in numbers]
    assert rows_of(made[np.array(numbers, np.int64)]) == expected
    assert [rows_of(made[number])[0] for number in numbers] == expected
    full = made.row_tokens == length
    assert rows_of(made[~full]) == [row for row, is_full in zip(rows_of(made), full, strict=True) if not is_full]
    with pytest.raises(IndexError, match=str(len(made))):
        made[len(made)]


@given(length_lists, row_lengths, strategies)
def test_statistics_agree_with_the_pieces(lengths: list[int], length: int, strategy: Any) -> None:
    made = plan(lengths, length, strategy)
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
