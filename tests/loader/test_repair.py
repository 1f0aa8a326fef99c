"""Batches whose samples fail: what is delivered follows from which samples fail, whoever answers first.

`tests/loader/dice.py` has the workers, who answer when dice say so.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedline.errors import EmptyBatch
from feedline.faults import Policy, Skip
from feedline.faults.function_policy import FunctionPolicy
from feedline.loader.account import Account, Treated
from feedline.loader.pending import Pending
from feedline.loader.repair import _MOST_NEIGHBOURS, Repair
from feedline.loader.reserve import EATEN, Reserve, ReserveState
from feedline.plan.foreign import ForeignPlan
from feedline.types import Notes, Result, ResultKind, Share, Task
from tests.loader.dice import SKIPS, Case, Run


@st.composite
def cases(draw: st.DrawFn, *, ranks: bool = False, workers: int = 4) -> Case:
    """Draw a plan, the samples of it that fail, and who makes its batches."""
    count = draw(st.integers(1, 30))
    batch_size = draw(st.sampled_from([None, 1, 2, 3, 5]))
    share = Share()
    if ranks:
        world_size = draw(st.integers(2, 3))
        share = Share(draw(st.integers(0, world_size - 1)), world_size, draw(st.sampled_from(["pad", "drop"])))
    return Case(
        count=count,
        batch_size=batch_size,
        bad=tuple(sorted(draw(st.sets(st.integers(0, count - 1))))),
        shuffled=draw(st.booleans()),
        lists=draw(st.booleans()),
        share=share,
        drop_last=batch_size is not None and draw(st.integers(0, 4)) == 0,
        workers=draw(st.integers(1, workers)),
        depth=draw(st.integers(1, 4)),
        look_ahead=draw(st.sampled_from([1, 2, 3, 5, 64])),
        dice=draw(st.integers(0, 1 << 30)),
    )


class Unlimited(FunctionPolicy):
    """A function, and no budget."""

    max_share = 1.0


quick = settings(deadline=None, max_examples=80)


def inline(case: Case) -> Case:
    return replace(case, workers=0)


def good_of(case: Case) -> list[int]:
    """The samples of the plan that work, in its order."""
    return [index for batch in case.batches() for index in batch if index not in case.bad]


def check_complete(case: Case, batches: list[list[int]]) -> None:
    """Check that every sample that works was delivered once, in full batches but for the last."""
    size, good = case.batch_size or 1, good_of(case)
    delivered = [index for batch in batches for index in batch]
    assert all(len(batch) == size for batch in (batches if case.drop_last else batches[:-1]))
    if case.drop_last:
        assert not Counter(delivered) - Counter(good)
        assert len(good) - len(delivered) < size
    else:
        assert sorted(delivered) == sorted(good)
        assert all(batches)


# -- one rank ---


@quick
@given(cases())
def test_every_sample_that_works_is_delivered_once_in_full_batches(case: Case) -> None:
    check_complete(case, inline(case).begin().take())


@quick
@given(cases())
def test_who_answers_first_makes_no_difference(case: Case) -> None:
    assert case.begin().take() == inline(case).begin().take()


# Found by chance at first, and kept: a batch that gives samples away is sent while nothing else is under way; and what
# may give samples depended on how much had been drawn.
@example(Case(16, 2, (4, 6, 7, 12, 15), workers=1, depth=1))
@example(Case(14, 2, (2, 3, 5), workers=4, depth=1, look_ahead=3, dice=3545))
@example(Case(17, 1, (1, 5, 7, 9, 10, 11, 13, 14, 16), workers=3, look_ahead=2, shuffled=True, lists=True, dice=29))
@quick
@given(cases())
def test_each_sample_that_fails_is_told_once_and_asked_for_once(case: Case) -> None:
    run = case.begin()
    run.take()
    lost = [fault.index for fault in run.account.log]
    assert sorted(set(lost)) == sorted(lost)
    if not case.drop_last:
        assert sorted(lost) == sorted(set(case.bad))
    assert all(fault.action == "skip" and fault.refilled for fault in run.account.log)
    assert set(run.account.log.quarantined) == set(lost)


@quick
@given(cases(), st.data())
def test_a_saved_state_continues_exactly_after_any_number_of_batches(case: Case, data: st.DataObject) -> None:
    whole = inline(case).begin().take()
    run = case.begin()
    head = run.take(data.draw(st.integers(0, len(whole))))
    other = replace(case, workers=data.draw(st.sampled_from([0, 1, 3])), dice=case.dice + 1)
    assert head + other.begin(run.snapshot()).take() == whole


def test_a_saved_state_continues_exactly_after_every_batch_of_a_chain_of_states() -> None:
    case = Case(40, 3, (0, 1, 2, 9, 10, 17, 20, 21, 22, 23, 30, 38), workers=2, look_ahead=3)
    whole = inline(case).begin().take()
    batches: list[list[int]] = []
    snapshot = None
    for dice in itertools.count():  # every batch in a life of its own
        run = replace(case, dice=dice).begin(snapshot)
        batch = run.take(1)
        if not batch:
            break
        batches += batch
        snapshot = run.snapshot()
    assert batches == whole


ORDERS = st.sampled_from(["unordered", "whim"])


# A scheduler waits for a worker that is busy with a batch that nobody wants any more, as it gives samples away.
@example(Case(10, 1, (1, 3), workers=1, depth=3, look_ahead=2, dice=90), "whim")
@example(Case(7, 2, (1,), workers=3, depth=4, look_ahead=3, dice=100), "whim")
@quick
@given(cases(), ORDERS)
def test_out_of_order_every_sample_that_works_is_delivered_once_as_well(case: Case, order: str) -> None:
    case = replace(case, order=order, drop_last=False)
    batches = case.begin().take()
    assert sorted(index for batch in batches for index in batch) == sorted(good_of(case))
    # The short last batch of the plan may have been delivered before others needed samples.
    assert sum(len(batch) < (case.batch_size or 1) for batch in batches) <= 2


@example(
    Case(25, 2, (3, 11, 12, 17, 21), workers=3, depth=5, look_ahead=3, shuffled=True, lists=True, dice=14),
    "unordered",
    8,
)
# A batch that has got samples of another is delivered before one that came first.
@example(Case(16, 2, (2, 11), workers=3, depth=4, look_ahead=2, dice=93), "whim", 5)
@example(Case(11, 2, (5,), workers=2, depth=3, look_ahead=2, dice=176), "whim", 3)
# So is one that has given some.
@example(Case(15, 2, (5,), workers=1, depth=4, look_ahead=2, dice=11), "whim", 6)
@example(Case(14, 2, (0,), workers=2, depth=4, look_ahead=2, dice=65), "whim", 4)
@quick
@given(cases(), ORDERS, st.integers(0, 30))
def test_out_of_order_a_saved_state_continues_without_loss_or_repetition(case: Case, order: str, count: int) -> None:
    case = replace(case, order=order, drop_last=False)
    run = case.begin()
    head = run.take(count)
    tail = [] if run.progress.ended else case.begin(run.snapshot()).take()
    assert sorted(index for batch in head + tail for index in batch) == sorted(good_of(case))


@quick
@given(cases(), st.booleans())
def test_what_samples_draw_does_not_depend_on_who_answers_first_either(case: Case, known: bool) -> None:
    case = replace(case, draws=True)
    first = inline(case).begin()
    batches = first.take()
    assert case.begin(account=first.account if known else None).take() == batches


@quick
@given(cases(), st.data())
def test_samples_that_come_several_times(case: Case, data: st.DataObject) -> None:
    size = case.batch_size or 1
    batch = st.tuples(*[st.integers(0, case.count - 1)] * size)
    case = replace(case, batch_size=size, given=tuple(data.draw(st.lists(batch, min_size=1, max_size=12))))
    run = case.begin()
    batches = run.take()
    check_complete(case, batches)
    assert batches == inline(case).begin().take()
    assert len({fault.index for fault in run.account.log}) == len(run.account.log)


@quick
@given(cases())
def test_without_refills_batches_are_left_short_and_empty_ones_out(case: Case) -> None:
    case = replace(case, refills=False, drop_last=False)
    left = [[index for index in batch if index not in case.bad] for batch in case.batches()]
    assert case.begin().take() == [batch for batch in left if batch]


@quick
@given(cases(), st.sets(st.integers(0, 29)))
def test_one_policy_may_refill_some_and_not_others(case: Case, small: set[int]) -> None:
    policy = Unlimited(lambda failure: Skip(refill=failure.index not in small))
    case = replace(case, policy=policy, drop_last=False)
    run = case.begin()
    batches = run.take()
    assert batches == inline(case).begin().take()
    assert sorted(index for batch in batches for index in batch) == sorted(good_of(case))
    assert sorted(fault.index for fault in run.account.log) == sorted(case.bad)
    assert all(fault.refilled == (fault.index not in small) for fault in run.account.log)


@quick
@given(cases(), st.sets(st.integers(0, 29)))
def test_samples_that_are_known_to_fail_are_not_asked_for_and_all_else_is_as_before(
    case: Case, small: set[int]
) -> None:
    case = replace(case, policy=Unlimited(lambda failure: Skip(refill=failure.index not in small)))
    first = case.begin()
    batches = first.take()
    known = set(first.account.log.quarantined)
    again = replace(case, dice=case.dice + 1).begin(account=first.account)
    assert again.take() == batches
    assert not known & set(again.dataset.asked)
    assert len(again.account.log) == len(known)


@quick
@given(cases())
def test_replaced_samples_take_the_places_of_those_that_fail(case: Case) -> None:
    if len(case.bad) == case.count:
        return
    case = replace(case, policy=Policy(otherwise="replace", max_share=1.0), refills=False)
    works = [next(n % case.count for n in itertools.count(i) if n % case.count not in case.bad) for i in range(30)]
    expected = [[works[index] for index in batch] for batch in case.batches()]
    run = case.begin()
    if max(_gaps(case)) > 16:
        return
    assert run.take() == expected
    again = case.begin(account=run.account)
    assert again.take() == expected
    assert not set(case.bad) & set(again.dataset.asked)


def _gaps(case: Case) -> list[int]:
    """How many samples in a row fail, from each on."""
    return [
        next(step for step in itertools.count() if (index + step) % case.count not in case.bad)
        for index in range(case.count)
    ]


@quick
@given(cases(), st.integers(1, 60))
def test_an_interrupt_loses_nothing(case: Case, question: int) -> None:
    case = inline(case)
    run = case.begin()
    run.dataset.interrupt_at = question
    batches: list[list[int]] = []
    while not run.progress.ended:
        with contextlib.suppress(KeyboardInterrupt):
            batches += run.take(1)
    assert batches == case.begin().take()
    assert len({fault.index for fault in run.account.log}) == len(run.account.log)


def test_a_batch_that_cannot_be_collated_is_passed_over() -> None:
    class Unlucky(Run):
        def collate(self, samples: Any) -> Any:
            if 4 in samples:
                raise ValueError("ragged")
            return samples

    for workers in (0, 2):
        run = Unlucky(Case(12, 3, (1,), workers=workers), None, None)
        assert run.take() == [[0, 9, 2], [6, 7, 8], [10, 11]]
        assert [(fault.index, fault.stage) for fault in run.account.log] == [(1, "fetch"), ([3, 4, 5], "collate")]
        assert list(run.account.log.quarantined) == [1]


# -- several ranks ---


@quick
@given(cases(ranks=True))
def test_with_other_ranks_the_number_of_batches_stays_and_none_is_empty(case: Case) -> None:
    if len(case.bad) > case.count - 2 or max(_gaps(case)) > _MOST_NEIGHBOURS:
        return
    plan = case.batches()
    batches = inline(case).begin().take()
    assert len(batches) == len(plan)
    assert all(batches)
    delivered, good = Counter(itertools.chain(*batches)), Counter(good_of(case))
    assert not good - delivered
    # A batch that has nothing left gets one sample that another has as well.
    assert (delivered - good).total() <= sum(len(batch) == 1 for batch in batches)
    assert not set(delivered) & set(case.bad)
    assert case.begin().take() == batches


@quick
@given(cases(ranks=True), st.data())
def test_with_other_ranks_a_saved_state_continues_exactly(case: Case, data: st.DataObject) -> None:
    if len(case.bad) > case.count - 2 or max(_gaps(case)) > _MOST_NEIGHBOURS:
        return
    whole = inline(case).begin().take()
    run = case.begin()
    head = run.take(data.draw(st.integers(0, len(whole))))
    assert head + replace(case, workers=2).begin(run.snapshot()).take() == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_with_other_ranks_a_batch_without_any_sample_is_an_error(workers: int) -> None:
    case = Case(60, 2, tuple(range(2, 60)), share=Share(0, 2), workers=workers, policy=SKIPS)
    run = case.begin()
    assert run.take(1) == [[0]]
    with pytest.raises(EmptyBatch, match="batch 1 is left") as caught:
        run.take(1)
    assert "sample 4: KeyError" in str(caught.value)
    assert "out of step" in str(caught.value)
    assert {4, 6, 4 + _MOST_NEIGHBOURS} <= {fault.index for fault in run.account.log}


# -- by hand ---


def bench(*batches: list[int], state: ReserveState | None = None, **how: Any) -> tuple[Reserve, Repair]:
    reserve = Reserve(ForeignPlan(iter(batches)), keeps_steps=how.get("keeps_steps", False), state=state)
    return reserve, Repair(reserve, **how)


def short(ordinal: int, indices: list[int], *failed: int) -> tuple[Pending, Result]:
    task = Task(1, indices)
    return Pending(None, ordinal, 0, task), Result(ResultKind.SHORT, 0, 1, notes=Notes(failed=failed))


def test_a_batch_that_gave_everything_away_is_not_begun() -> None:
    reserve, repair = bench([1], [2], state=ReserveState(None, 0, (1,)))
    assert next(reserve) == [1]
    assert repair.may_begin(0, [1])
    assert next(reserve) is EATEN
    assert not repair.may_begin(1, EATEN)
    assert repair.voids.keys() == {1}
    assert repair.has_work(1)
    assert not repair.has_work(0)
    repair.done(1)
    assert not repair.voids


def test_a_batch_is_mended_when_those_before_it_are_complete() -> None:
    reserve, repair = bench([0, 1], [2, 3], [4, 5], [6, 7])
    for ordinal in range(3):
        repair.begin(ordinal, Treated(next(reserve)))
    repair.answered(*short(2, [4, 5], 0), {})
    assert repair.next_mended([0, 1]) is None
    repair.answered(*short(1, [2, 3], 1), {})
    assert repair.next_mended([0]) is None
    mended = repair.next_mended([])
    assert mended is not None
    assert (mended.ordinal, mended.indices, mended.cancelled) == (1, [2, 6], [])
    assert repair.next_mended([1]) is None
    mended = repair.next_mended([])
    assert mended is not None
    assert (mended.ordinal, mended.indices) == (2, [7, 5])
    assert next(reserve) is EATEN


def test_a_batch_ahead_that_gives_samples_is_not_made_as_it_was() -> None:
    reserve, repair = bench([0, 1], [2, 3], [4, 5])
    for ordinal in range(3):
        repair.begin(ordinal, Treated(next(reserve)))
    ready: dict[int, Result] = {}
    done = Result(ResultKind.DONE, 0, 1, [4, 5])
    repair.answered(Pending(None, 2, 0, Task(1, [4, 5])), done, ready)
    assert ready == {2: done}
    repair.answered(*short(0, [0, 1], 0), ready)
    mended = repair.next_mended([1])
    assert mended is not None
    assert (mended.indices, mended.cancelled) == ([4, 1], [2])
    assert repair.next_mended([0, 1]) is None
    mended = repair.next_mended([])
    assert mended is not None
    assert (mended.ordinal, mended.indices, mended.pending) == (2, [5], None)


def test_faults_of_both_makings_come_with_the_batch() -> None:
    reserve, repair = bench([0, 1], [2, 3])
    repair.begin(0, Treated(next(reserve)))
    pending, result = short(0, [0, 1], 0)
    assert result.notes is not None
    result.notes.faults = ["first"]
    pending.faults = ["said"]  # type: ignore[list-item]  # they are only handed on
    ready: dict[int, Result] = {}
    repair.answered(pending, result, ready)
    assert pending.faults == []
    assert repair.next_mended([]) is not None
    repair.answered(pending, Result(ResultKind.DONE, 0, 2, [2, 1], notes=Notes(faults=["second"])), ready)
    assert not ready  # it is delivered after all before it
    notes = repair.finished[0].notes
    assert notes is not None
    assert notes.faults == ["first", "second"]
    assert repair.has_work(0)


def test_without_a_policy_there_is_nothing_to_repair_unless_the_plan_was_entered_with_a_reserve() -> None:
    plan = ForeignPlan(iter([[1]]))
    assert Repair.of(plan, None, batched=True) is None
    assert Repair.of(plan, Account(Policy()), batched=True) is None
    assert Repair.of(plan, Account(SKIPS), batched=True) is not None
    assert Repair.of(Reserve(plan, keeps_steps=False), Account(Policy()), batched=True) is not None


def test_a_closed_repair_has_nothing_to_do() -> None:
    reserve, repair = bench([0, 1], [2, 3])
    repair.begin(0, Treated(next(reserve)))
    repair.answered(*short(0, [0, 1], 0), {})
    repair.close()
    assert repair.next_mended([]) is None
    assert not repair.has_work(0)
