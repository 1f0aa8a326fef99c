"""The batch that gives its samples to others: which it is, what is left of it, and how that is saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadState
from feedline.loader import reserve as reserve_module
from feedline.loader.reserve import EATEN, LOOK_AHEAD, Reserve, ReserveState, with_reserve
from feedline.plan.foreign import ForeignPlan
from feedline.plan.seekable import SamplePlan
from feedline.samplers import InfiniteSampler, SequentialSampler
from feedline.types import IndexBlock, Key


def pairs(count: int) -> list[list[int]]:
    return [[2 * number, 2 * number + 1] for number in range(count)]


def reserve_of(batches: Any, **how: Any) -> Reserve:
    return Reserve(ForeignPlan(iter(batches)), keeps_steps=how.pop("keeps_steps", False), **how)


def drawn(reserve: Reserve, count: int) -> list[Any]:
    return [next(reserve) for _ in range(count)]


# -- who gives ---


def test_nothing_is_drawn_ahead_before_a_sample_is_needed() -> None:
    batches = iter(pairs(5))
    reserve = reserve_of(batches)
    assert next(reserve) == [0, 1]
    assert next(batches) == [2, 3]


def test_samples_come_from_a_batch_some_way_ahead_one_by_one() -> None:
    reserve = reserve_of(pairs(200))
    next(reserve)
    assert reserve.take(0, 1) == ([2 * LOOK_AHEAD], [LOOK_AHEAD])
    assert reserve.is_source(LOOK_AHEAD)
    assert not reserve.is_eaten(LOOK_AHEAD)
    assert reserve.take(1, 2) == ([2 * LOOK_AHEAD + 1, 2 * LOOK_AHEAD + 2], [LOOK_AHEAD + 1])
    assert reserve.is_eaten(LOOK_AHEAD)
    assert reserve.is_source(LOOK_AHEAD + 1)
    rest = drawn(reserve, LOOK_AHEAD + 1)
    assert rest[-2:] == [EATEN, [2 * LOOK_AHEAD + 2, 2 * LOOK_AHEAD + 3]]
    assert reserve.rest_of(LOOK_AHEAD + 1) == ([2 * LOOK_AHEAD + 3], 1)
    assert not reserve.is_source(LOOK_AHEAD + 1)


def test_near_the_end_the_last_batch_gives_first() -> None:
    reserve = reserve_of(pairs(4))
    next(reserve)
    assert reserve.take(0, 5) == ([6, 7, 4, 5, 2], [3, 2, 1])
    assert reserve.take(0, 5) == ([3], [])
    assert reserve.take(0, 1) == ([], [])
    assert drawn(reserve, 3) == [EATEN, EATEN, EATEN]
    with pytest.raises(StopIteration):
        next(reserve)


def test_a_batch_never_gives_to_those_after_it() -> None:
    reserve = reserve_of(pairs(3))
    drawn(reserve, 3)
    assert reserve.take(2, 1) == ([], [])
    assert reserve.take(1, 3) == ([4, 5], [2])


@given(window=st.integers(1, 20), look_ahead=st.integers(1, 8), counts=st.lists(st.integers(0, 4), max_size=10))
def test_who_gives_does_not_depend_on_how_much_was_drawn(window: int, look_ahead: int, counts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(reserve_module, "LOOK_AHEAD", look_ahead)
        taken = []
        for ahead in (1, window):
            reserve = reserve_of(pairs(20))
            drawn(reserve, ahead)
            taken.append([reserve.take(0, count)[0] for count in counts])
    assert taken[0] == taken[1]


def test_batches_that_were_delivered_out_of_turn_give_nothing() -> None:
    reserve = reserve_of(pairs(4))
    reserve.exclude([3])
    drawn(reserve, 3)
    reserve.done(2)
    assert reserve.take(0, 1) == ([2], [1])


def test_a_batch_may_be_a_block_a_tuple_or_an_array() -> None:
    for form in (tuple, np.array, lambda batch: IndexBlock(np.array(batch))):
        reserve = reserve_of(map(form, pairs(3)))
        next(reserve)
        assert reserve.take(0, 3) == ([4, 5, 2], [2, 1])


def test_single_samples_whatever_their_indices_are() -> None:
    reserve = reserve_of([("cat", 1), [2, 3], "dog"], batched=False)
    next(reserve)
    assert reserve.take(0, 3) == (["dog", [2, 3]], [2, 1])


def test_an_endless_plan_is_drawn_no_further_than_needed() -> None:
    sampler = InfiniteSampler(range(10), seed=1)
    reserve = Reserve(SamplePlan(sampler, 2, drop_last=False, key=Key(1, 0)), keeps_steps=False)
    next(reserve)
    taken, touched = reserve.take(0, 2)
    assert (len(taken), touched) == (2, [LOOK_AHEAD])


# -- ranks ---


@given(counts=st.lists(st.integers(0, 6), max_size=8), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_with_other_ranks_no_batch_is_eaten(counts: list[int], sizes: list[int]) -> None:
    numbers = itertools.count()
    reserve = reserve_of([[next(numbers) for _ in range(size)] for size in sizes], keeps_steps=True)
    next(reserve)
    for count in counts:
        reserve.take(0, count)
    assert EATEN not in list(reserve)


# -- trouble with the plan ---


def broken(count: int) -> Iterator[list[int]]:
    yield from pairs(count)
    raise RuntimeError("of the sampler")


def test_what_a_sampler_raises_is_raised_when_its_batch_would_have_come_and_once() -> None:
    reserve = reserve_of(broken(3))
    next(reserve)
    assert reserve.take(0, 1) == ([4], [2])
    assert drawn(reserve, 2) == [[2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match="of the sampler"):
        next(reserve)
    with pytest.raises(StopIteration):
        next(reserve)


# -- states ---


def test_the_state_of_a_plan_from_which_nothing_was_taken_is_that_of_the_plan() -> None:
    plan = ForeignPlan(iter(pairs(3)))
    reserve = Reserve(plan, keeps_steps=False)
    next(reserve)
    assert reserve.state(1) == plan.state(1)
    assert reserve.last_state(1) == plan.last_state(1)
    assert reserve.after() == plan.after()
    assert reserve.draw(2) == plan.draw(2)
    assert reserve.can_move == plan.can_move


def test_a_state_holds_what_was_so_after_the_batches_that_were_delivered() -> None:
    reserve = reserve_of(pairs(6))
    drawn(reserve, 3)
    reserve.take(1, 1)
    reserve.mark(1)
    reserve.take(2, 2)
    reserve.mark(2)
    assert reserve.state(0) == {"unit": "own batches", "consumed": 0}
    assert reserve.state(1) == {"unit": "own batches", "consumed": 1}
    assert reserve.state(2)["reserve"] == {"source": 3, "used": 1}
    assert reserve.state(3)["reserve"] == {"source": 1, "used": 1, "eaten": [2]}
    assert reserve.state(5)["reserve"] == {"eaten": [0]}
    assert "reserve" not in reserve.state(6)


def test_a_checkpoint_takes_back_what_was_taken_since() -> None:
    reserve = reserve_of(pairs(4))
    drawn(reserve, 2)
    reserve.take(0, 1)
    reserve.mark(0)
    before = reserve.checkpoint()
    first = reserve.take(1, 2)
    reserve.mark(1)
    reserve.undo(before)
    assert reserve.state(2)["reserve"] == {"source": 1, "used": 1}
    assert reserve.take(1, 2) == first


numbers = st.integers(0, 60)


@st.composite
def states(draw: st.DrawFn) -> ReserveState:
    near = draw(st.lists(numbers, unique=True, max_size=5))
    used = draw(st.integers(0, 9))
    if near and used:
        return ReserveState(near[0], used, tuple(near[1:]))
    return ReserveState(None, 0, tuple(near))


@given(states())
def test_a_state_survives_being_saved(state: ReserveState) -> None:
    assert ReserveState.from_dict(state.as_dict(0)) == state


@given(states(), numbers)
def test_a_state_counts_from_the_batches_that_were_delivered(state: ReserveState, delivered: int) -> None:
    saved = ReserveState.from_dict(state.as_dict(delivered))
    if state.source is not None and state.source >= delivered:
        assert (saved.source, saved.used) == (state.source - delivered, state.used)
    else:
        assert (saved.source, saved.used) == (None, 0)
    assert saved.eaten == tuple(number - delivered for number in state.eaten if number >= delivered)


DAMAGED: list[Any] = [
    0,
    [],
    "reserve",
    [1, 2],
    {"source": "3", "used": 1},
    {"source": 1.0, "used": 1},
    {"source": True, "used": 1},
    {"source": -1, "used": 1},
    {"source": 1},
    {"source": 1, "used": 0},
    {"source": 1, "used": -1},
    {"source": 1, "used": "2"},
    {"source": 1, "used": True},
    {"used": 2},
    {"source": 10**9, "used": 1},
    {"source": 1, "used": 1, "eaten": [1]},
    {"eaten": [1, 1]},
    {"eaten": [-1]},
    {"eaten": [0.5]},
    {"eaten": [10**9]},
    {"eaten": 3},
    {"eaten": None},
    {"eaten": "12"},
    {"eaten": {"a": 1}},
]


@pytest.mark.parametrize("saved", DAMAGED, ids=repr)
def test_a_damaged_state_is_refused(saved: Any) -> None:
    with pytest.raises(BadState, match="damaged"):
        with_reserve(ForeignPlan(iter(pairs(3))), {"reserve": saved}, refills=True, keeps_steps=False, batched=True)


@pytest.mark.parametrize("state", [ReserveState(1, 2), ReserveState(1, 9), ReserveState(7, 1)], ids=repr)
def test_a_state_that_does_not_fit_the_plan_is_refused_when_its_batch_is_needed(state: ReserveState) -> None:
    reserve = reserve_of(pairs(3), state=state)
    next(reserve)
    with pytest.raises(BadState, match="damaged"):
        reserve.take(0, 1)


def test_a_plan_is_left_alone_where_nothing_refills_and_nothing_was_saved() -> None:
    plan = SamplePlan(SequentialSampler(range(4)), 2, drop_last=False, key=Key(0, 0))
    assert with_reserve(plan, {}, refills=False, keeps_steps=False, batched=True) is plan
    kept = with_reserve(plan, {"reserve": {"eaten": [0]}}, refills=False, keeps_steps=False, batched=True)
    assert next(kept) is EATEN
    assert as_list_of(next(kept)) == [2, 3]


def as_list_of(batch: Any) -> list[int]:
    listed: list[int] = batch.array.tolist()
    return listed
