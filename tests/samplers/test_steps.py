"""How ranks take steps through one order together."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers.steps import Steps
from feedline.system.ranks import TAILS, Share

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
@example(7, 2, 3, "exact", False)
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
