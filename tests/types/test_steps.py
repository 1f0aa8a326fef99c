"""How ranks take steps through one order together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.types import TAILS, Share
from feedline.types.steps import Steps

totals = st.integers(0, 60)
sizes = st.integers(1, 5)
worlds = st.integers(1, 6)
tails = st.sampled_from(TAILS)


def all_ranks(total: int | None, size: int, world: int, tail: str, *, drop_last: bool = False) -> list[Steps]:
    """Return the steps of every rank; skip combinations that are rejected."""
    try:
        return [Steps(total, size, Share(rank, world, tail), drop_last=drop_last) for rank in range(world)]
    except BadOption:
        assume(False)
        raise


def count_of(steps: Steps) -> int:
    assert steps.count is not None
    return steps.count


def consumed_in(ranks: list[Steps], numbers: range) -> Counter[int]:
    return Counter(place for steps in ranks for number in numbers for place in steps.own(number).tolist())


@given(totals, sizes, worlds, tails, st.booleans())
def test_ranks_take_the_same_steps_and_consume_a_prefix(
    total: int, size: int, world: int, tail: str, drop_last: bool
) -> None:
    ranks = all_ranks(total, size, world, tail, drop_last=drop_last)
    (count,) = {count_of(steps) for steps in ranks}
    for number in range(count + 1):
        (start,) = {steps.start(number) for steps in ranks}
        assert consumed_in(ranks, range(number)) == Counter(range(start)), "each position once, without gaps"
    assert [ranks[0].start(count + more) for more in range(3)] == [ranks[0].start(count)] * 3


@given(totals, sizes, worlds, tails, st.booleans())
def test_no_rank_is_ever_without_a_sample(total: int, size: int, world: int, tail: str, drop_last: bool) -> None:
    ranks = all_ranks(total, size, world, tail, drop_last=drop_last)
    for number in range(count_of(ranks[0])):
        lengths = [len(steps.own(number)) for steps in ranks]
        assert min(lengths) >= 1
        assert max(lengths) <= size
        if drop_last:
            assert min(lengths) == size
        if tail != "exact":
            assert len(set(lengths)) == 1


@given(totals, sizes, worlds)
def test_exact_covers_every_position_once(total: int, size: int, world: int) -> None:
    ranks = all_ranks(total, size, world, "exact")
    assert consumed_in(ranks, range(count_of(ranks[0]))) == Counter(range(total))
    assert count_of(ranks[0]) == -(-total // (size * world)), "in no more steps than the other tails"


@given(totals, sizes, worlds)
def test_pad_exceeds_the_end_by_less_than_a_round(total: int, size: int, world: int) -> None:
    ranks = all_ranks(total, size, world, "pad")
    end = ranks[0].start(count_of(ranks[0]))
    assert total <= end < total + world


@given(totals, sizes, worlds)
def test_drop_leaves_out_less_than_a_round(total: int, size: int, world: int) -> None:
    ranks = all_ranks(total, size, world, "drop")
    end = ranks[0].start(count_of(ranks[0]))
    assert total - world < end <= total


@given(totals, sizes, worlds, st.sampled_from(["pad", "drop"]))
def test_drop_last_leaves_out_less_than_a_step(total: int, size: int, world: int, tail: str) -> None:
    ranks = all_ranks(total, size, world, tail, drop_last=True)
    end = ranks[0].start(count_of(ranks[0]))
    assert end % (size * world) == 0
    assert total - end < size * world


@given(totals, sizes, worlds, tails, st.booleans(), st.data())
def test_resuming_with_the_same_ranks_continues_exactly(
    total: int, size: int, world: int, tail: str, drop_last: bool, data: st.DataObject
) -> None:
    ranks = all_ranks(total, size, world, tail, drop_last=drop_last)
    count = count_of(ranks[0])
    done = data.draw(st.integers(0, count))
    consumed = min(ranks[0].start(done), total)
    rest = all_ranks(total - consumed, size, world, tail, drop_last=drop_last)
    assert count_of(rest[0]) == count - done
    for before, after in zip(ranks, rest, strict=True):
        for number in range(count - done):
            assert (after.own(number) + consumed).tolist() == before.own(done + number).tolist()


@given(totals, sizes, worlds, tails, sizes, worlds, st.data())
def test_resuming_with_other_ranks_covers_exactly_the_rest(
    total: int, size: int, world: int, tail: str, other_size: int, other_world: int, data: st.DataObject
) -> None:
    ranks = all_ranks(total, size, world, tail)
    done = data.draw(st.integers(0, count_of(ranks[0])))
    consumed = min(ranks[0].start(done), total)
    rest = all_ranks(total - consumed, other_size, other_world, "exact")
    covered = consumed_in(rest, range(count_of(rest[0])))
    assert Counter(place + consumed for place in covered.elements()) == Counter(range(consumed, total))


@given(sizes, worlds, tails, st.integers(0, 2**50))
def test_an_endless_order(size: int, world: int, tail: str, number: int) -> None:
    ranks = all_ranks(None, size, world, tail)
    assert {steps.count for steps in ranks} == {None}
    start = ranks[0].start(number)
    assert start == number * size * world
    assert consumed_in(ranks, range(number, number + 1)) == Counter(range(start, start + size * world))


@given(totals | st.none(), sizes, worlds, tails, st.booleans())
def test_the_first_steps_are_evenly_spaced(
    total: int | None, size: int, world: int, tail: str, drop_last: bool
) -> None:
    ranks = all_ranks(total, size, world, tail, drop_last=drop_last and total is not None)
    count = ranks[0].count
    even = int(min(ranks[0].even, 10))
    if count is not None:
        assert count - 2 <= ranks[0].even <= count
    for rank, steps in enumerate(ranks):
        for number in range(even):
            expected = number * size * world + rank + world * np.arange(size)
            assert steps.own(number).tolist() == expected.tolist()


def test_steps_of_large_orders_are_computed_directly() -> None:
    steps = Steps(2**62, 1024, Share(5, 7, "exact"), drop_last=False)
    last = count_of(steps) - 1
    assert steps.own(last).dtype == np.int64
    assert steps.start(last + 1) == 2**62


# -- rejected options -----


@given(totals, sizes, worlds)
def test_exact_is_rejected_only_if_a_rank_would_get_nothing(total: int, size: int, world: int) -> None:
    if world > 1 and total > 0 and (total < world or (size == 1 and total % world != 0)):
        with pytest.raises(BadOption, match=rf"\({total} samples.*tail='pad' or 'drop'"):
            Steps(total, size, Share(0, world, "exact"), drop_last=False)
    else:
        Steps(total, size, Share(0, world, "exact"), drop_last=False)


def test_exact_and_drop_last_contradict_each_other() -> None:
    with pytest.raises(BadOption, match=r"drop_last=True leaves samples out"):
        Steps(10, 2, Share(0, 2, "exact"), drop_last=True)
    assert Steps(10, 3, Share(0, 1, "exact"), drop_last=True).count == 3, "a single rank has no tail"
