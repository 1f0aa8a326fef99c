"""Failed samples: the log, samples that are not requested again, and the budget."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest

from feedline.delivery.machine.batch_indices import as_list
from feedline.delivery.machine.fault_budget import _LONGEST_CHAIN, FaultBudget, Treated
from feedline.errors import EmptyBatch, TooManyBadSamples
from feedline.faults import Failure, Fault, Policy
from feedline.types import IndexBlock, Notes, Result, ResultKind
from tests.faults.loaders import Numbers, make


def fault_of(index: Any, action: str = "skip", *, stage: str = "fetch", **more: Any) -> Fault:
    return Fault.of(Failure(index, OSError("torn"), stage, 1, 0), action, time=1.7e9, **more)


def budget_of(*faults: Fault, policy: Policy | None = None, seen: int = 0) -> FaultBudget:
    fault_budget = FaultBudget(policy or Policy(otherwise="skip", max_share=1.0))
    fault_budget.dataset = range(100)
    fault_budget.write(faults, seen, 0)
    with contextlib.suppress(TooManyBadSamples):
        fault_budget.check()
    return fault_budget


def answer(*faults: Fault) -> Result:
    return Result(ResultKind.DONE, 0, 1, notes=Notes(faults=list(faults)))


# -- the log ---


def test_faults_of_an_answer_are_logged_once_with_their_epoch() -> None:
    fault_budget, result = budget_of(), answer(fault_of(3), fault_of(4, "retry"))
    fault_budget.enter(result, 8, 5)
    fault_budget.enter(result, 8, 5)
    assert [(fault.index, fault.action, fault.epoch) for fault in fault_budget.log] == [(3, "skip", 5), (4, "retry", 5)]
    assert list(fault_budget.log.quarantined) == [3]


def test_a_sample_that_failed_twice_is_logged_once() -> None:
    fault_budget = budget_of(fault_of(3), fault_of(3), fault_of(np.int64(3)), fault_of([3, 4], stage="collate"))
    fault_budget.write([fault_of(3), fault_of([3, 4], stage="collate")], 8, 1)
    assert [fault.index for fault in fault_budget.log] == [3, [3, 4], [3, 4]]


def test_samples_without_indices_are_logged_each_time_and_never_quarantined() -> None:
    fault_budget = budget_of()
    fault_budget.dataset = None
    for _ in range(2):
        fault_budget.write([fault_of(3)], 8, 0)
    assert len(fault_budget.log) == 2
    assert len(fault_budget.log.quarantined) == 0


# -- samples that are not requested again ---


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda items: IndexBlock(np.array(items))])
def test_known_bad_samples_are_skipped_or_replaced(form: Any) -> None:
    fault_budget = budget_of(fault_of(3), fault_of(5), fault_of(7, "replace", replacement=9), fault_of(1, "retry"))
    treated = fault_budget.treat(form([1, 3, 5, 7]), batched=True)
    assert [int(index) for index in as_list(treated.indices)] == [1, 3, 5, 9]
    assert treated.skip == (1, 2)
    assert treated.known == 3


def test_batches_without_known_bad_samples_are_unchanged() -> None:
    block = IndexBlock(np.arange(4))
    for fault_budget in (budget_of(), budget_of(fault_of(9)), budget_of(fault_of([0, 1], stage="collate"))):
        treated = fault_budget.treat(block, batched=True)
        assert treated.indices is block
        assert not treated.skip
        assert not treated.known


def test_cycles_of_replacements_end() -> None:
    fault_budget = budget_of(
        *(fault_of(index, "replace", replacement=(index + 1) % 50) for index in range(50)),
    )
    assert fault_budget.treat([0], batched=True).indices == [_LONGEST_CHAIN]


# -- the budget ---


def test_the_budget_starts_anew_with_each_epoch() -> None:
    fault_budget = budget_of(fault_of(1), fault_of(2), policy=Policy(otherwise="skip", max_failures=2), seen=10)
    fault_budget.check()
    fault_budget.begin_epoch(0, resumes=False)
    fault_budget.write([fault_of(3), fault_of(4)], 10, 1)
    fault_budget.check(ended=True)


def test_a_spent_budget_stays_spent() -> None:
    policy = Policy(otherwise="skip", max_share=0.5)
    batches = iter(make("Loader", Numbers(400, set(range(52))), 10, on_error=policy))
    assert [len(next(batches)) for _ in range(4)] == [8, 10, 10, 10]
    for _ in range(30):
        with pytest.raises(TooManyBadSamples, match="52 of 100 samples"):
            next(batches)


# -- what is delivered ---


def test_the_error_names_an_index_without_a_neighbour() -> None:
    fault_budget = budget_of()
    with pytest.raises(EmptyBatch, match="out of step") as caught:
        fault_budget.instead_of(Treated(["cat", "dog"]), batched=True)
    assert any("'dog' has no neighbour" in note for note in caught.value.__notes__)


# -- states ---


def test_a_state_holds_the_log_and_what_was_seen() -> None:
    fault_budget = budget_of(fault_of(3), fault_of((1, 2), "replace", replacement=4), seen=50)
    state = json.loads(json.dumps(fault_budget.state()))
    other = budget_of(fault_of(99))
    other.restore(state)
    assert json.loads(json.dumps(other.state())) == state
    assert [other.log.quarantined_as(index) is not None for index in (3, (1, 2), 99)] == [True, True, False]


def test_a_resumed_epoch_continues_with_its_budget() -> None:
    policy = Policy(otherwise="skip", max_failures=2)
    fault_budget = budget_of(fault_of(3), fault_of(4), policy=policy, seen=50)
    other = FaultBudget(policy)
    other.restore(fault_budget.state())
    other.begin_epoch(0, resumes=True)
    other.check()
    other.write([fault_of(5)], 10, 0)
    with pytest.raises(TooManyBadSamples, match="3 of 60"):
        other.check()
