"""Workers that die are replaced, their tasks are done by others, and a sample that kills workers is found.

`dice.py` has the workers, which answer and die at random. That samples which kill are skipped as if they had raised, in
any plan, is a law of the simulation (`tests/simulation/expected.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.delivery.machine.epoch import Flight, Limits
from feedline.delivery.machine.recovery import (
    Recovery,
    Seen,
    users_frames,
)
from feedline.errors import WorkerDied, WorkerTimeout
from feedline.faults import Policy, Retry
from feedline.faults.policy import FunctionPolicy
from feedline.types import Task
from feedline.workers import runner
from tests.delivery.machine.dice import Case, Run

RAISES = Policy()
REPLACES = Policy(otherwise="replace", max_share=1.0)


def numbers(batches: list[list[int]]) -> list[int]:
    return sorted(index for batch in batches for index in batch)


# -- samples that kill workers ---


@pytest.mark.parametrize("batch_size", [None, 4])
def test_without_a_policy_the_error_names_the_sample_and_only_its_batch_is_lost(batch_size: int | None) -> None:
    run = Case(12, batch_size, killers=(5,), policy=RAISES, workers=2).begin()
    before = run.take(5 if batch_size is None else 1)
    with pytest.raises(WorkerDied, match=r"Sample 5 kills every worker that makes it.* is gone"):
        run.take(1)
    after = run.take()
    assert numbers(before + after) == [
        index for index in range(12) if index != 5 and (batch_size is None or index not in (4, 6, 7))
    ]
    (fault,) = run.fault_budget.log
    assert (fault.index, fault.stage, fault.action) == (5, "worker", "raise")


def test_restart_warnings_name_the_batch_and_its_samples() -> None:
    run = Case(12, 4, killers=(5,), workers=1, restarts=30).begin()
    run.take()
    assert "worker 0 is gone" in run.said[0]
    assert "batch 1 (samples 4, 5, 6, 7)" in run.said[0]
    assert "restart 1 of 30" in run.said[0]
    assert all("batch 1 (" in said for said in run.said)


# -- policies ---


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_neighbour_can_replace_a_killer(batch_size: int | None) -> None:
    run = Case(9, batch_size, killers=(4,), policy=REPLACES, workers=2).begin()
    assert numbers(run.take()) == [0, 1, 2, 3, 5, 5, 6, 7, 8]
    (fault,) = run.fault_budget.log
    assert (fault.index, fault.action, fault.replacement, fault.stage) == (4, "replace", 5, "worker")


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_neighbour_that_kills_too_is_replaced_and_neither_is_requested_again(
    batch_size: int | None,
) -> None:
    case = Case(9, batch_size, killers=(4, 5), policy=REPLACES, workers=1)
    run = case.begin()
    assert numbers(run.take()) == [0, 1, 2, 3, 6, 6, 6, 7, 8]
    again = case.begin(fault_budget=run.fault_budget)
    assert numbers(again.take()) == [0, 1, 2, 3, 6, 6, 6, 7, 8]
    assert again.counters.restarts == 0


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_replacement_is_not_blamed_after_one_death(batch_size: int | None) -> None:
    case = Case(9, batch_size, killers=(4,), accidents=((5, 1),), policy=REPLACES, workers=1)
    run = case.begin()
    assert numbers(run.take()) == [0, 1, 2, 3, 5, 5, 6, 7, 8]
    assert [fault.index for fault in run.fault_budget.log] == [4]


def test_a_killer_can_be_retried_before_it_is_skipped() -> None:
    policy = Policy(otherwise=Retry(2, then="skip", wait_s=0.0), max_share=1.0)
    run = Case(6, 3, killers=(4,), policy=policy, workers=1).begin()
    assert numbers(run.take()) == [0, 1, 2, 3, 5]
    (fault,) = run.fault_budget.log
    assert (fault.index, fault.action, fault.attempt) == (4, "skip", 3)


def test_an_error_of_the_policy_is_raised_in_place_of_the_batch() -> None:
    def ask(failure: Any) -> Any:
        assert failure.stage == "worker"
        raise RuntimeError("of the policy")

    run = Case(9, 3, killers=(4,), policy=FunctionPolicy(ask), workers=1).begin()
    assert run.take(1) == [[0, 1, 2]]
    with pytest.raises(RuntimeError, match="of the policy") as caught:
        run.take(1)
    assert any("sample 4" in note for note in caught.value.__notes__)
    assert run.take() == [[6, 7, 8]]


# -- giving up ---


def dying(run: Run, death: Callable[[int], BaseException]) -> Run:
    run.engine.death = death
    return run


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_when_the_budget_is_spent_the_death_is_raised_and_the_workers_end(restarts: int) -> None:
    run = Case(12, 4, killers=(5,), workers=2, restarts=restarts, policy=RAISES).begin()
    with pytest.raises(WorkerDied, match="is gone"):
        run.take()
    assert run.counters.restarts == restarts
    assert run.driver.closed
    assert run.engine.closed


def test_killers_found_before_the_budget_is_spent_are_in_the_log() -> None:
    case = Case(4, 4, killers=(1, 2), workers=1, restarts=6)
    run = case.begin()
    with pytest.raises(WorkerDied, match=r"restarts=6 allows no more. Samples that were found to kill are in"):
        run.take()
    assert [(fault.index, fault.action) for fault in run.fault_budget.log] == [(1, "skip")]
    assert case.begin(fault_budget=run.fault_budget).take() == [[0, 3]]


def unready(worker: int) -> BaseException:
    death = WorkerDied(f"worker {worker} could not start")
    death.was_ready = False
    return death


@pytest.mark.parametrize("death", [lambda _: ValueError("of worker_init_fn"), unready])
def test_a_worker_that_ends_by_itself_before_it_is_ready_is_not_replaced(death: Callable[[int], BaseException]) -> None:
    run = dying(Case(8, 4, killers=(0,), workers=1).begin(), death)
    with pytest.raises(type(death(0)), match=r"of worker_init_fn|could not start.* Check what runs before"):
        run.take()
    assert run.driver.closed
    assert run.counters.restarts == len(run.fault_budget.log) == 0, "it had not begun its task"


@pytest.mark.parametrize("was_killed", [True, None])
def test_workers_killed_during_their_start_are_replaced_while_restarts_are_left(was_killed: bool | None) -> None:
    recovery = Recovery(restarts=50)
    death = WorkerDied("worker 0 was killed by signal 9 (SIGKILL)")
    death.was_killed, death.was_ready = was_killed, False
    assert [recovery.end_by(death, None) for _ in range(51)] == [None] * 50 + [death]


def test_a_sample_that_blocks_workers_is_reported_as_blocking() -> None:
    run = Case(6, 3, killers=(4,), workers=1).begin()
    dying(run, lambda worker: WorkerTimeout(f"worker {worker} is still at batch 1"))
    assert numbers(run.take()) == [0, 1, 2, 3, 5]
    (fault,) = run.fault_budget.log
    assert "Sample 4 blocks every worker" in fault.message
    assert fault.error == "feedline.errors.WorkerTimeout"


# -- workers killed from outside ---


@pytest.mark.parametrize("batch_size", [None, 1, 8])
def test_samples_are_not_blamed_if_each_kills_one_worker(batch_size: int | None) -> None:
    """As if every worker was killed once from outside, whatever it was making."""
    for dice in range(12):
        accidents = tuple((index, 1) for index in range(96) if index not in (17, 70))
        case = Case(96, batch_size, killers=(17, 70), accidents=accidents, workers=3, restarts=10**6, dice=dice)
        run = case.begin()
        assert numbers(run.take()) == [index for index in range(96) if index not in (17, 70)]
        assert {fault.index for fault in run.fault_budget.log} == {17, 70}, dice


def test_killers_are_found_quickly_if_nothing_else_kills_workers() -> None:
    run = Case(96, 8, killers=(17, 70), workers=3).begin()
    run.take()
    assert run.counters.restarts == 2 * (2 + 2), "the batch, and the sample alone"


# -- workers that do not answer ---


def stuck_error(recovery: Recovery, *, kills_stuck: bool, killed: bool = False, wanted: bool = True) -> str:
    late = Flight(9, 1, Task(0, [70, 71]), wanted=wanted)
    stack = 'File "loading.py", line 7 in read_1\n'
    error = recovery.stuck_error(late, Limits(4, 2, 30.0, kills_stuck=kills_stuck), 31.2, Seen(4001, stack, killed))
    return str(error)


def test_the_timeout_error_has_the_batch_and_the_stack_of_the_stuck_worker() -> None:
    message = stuck_error(Recovery(), kills_stuck=False)
    assert (
        "timed out after 30.0 seconds: worker 1 (pid 4001) is still at batch 9 (samples 70, 71), after 31.2" in message
    )
    assert message.endswith('What it is doing (most recent call first):\nFile "loading.py", line 7 in read_1')
    assert "With restarts=, such as restarts=10, it would be replaced" in message
    assert "(samples 70, 71) of an iteration that was left" in stuck_error(Recovery(), kills_stuck=False, wanted=False)


@pytest.mark.parametrize(
    ("restarts", "why"),
    [
        (0, "0 workers were replaced in this epoch, and restarts= allows no more"),
        (1, "this engine cannot end a worker"),
    ],
)
def test_the_timeout_error_says_why_a_stuck_worker_is_not_replaced(restarts: int, why: str) -> None:
    assert why in stuck_error(Recovery(restarts=restarts), kills_stuck=True)


_ENGINE, _LIBRARY = Path(runner.__file__), Path(threading.__file__)


@pytest.mark.parametrize(
    ("stacks", "shown"),
    [
        pytest.param(
            f"""Thread 0x1 (most recent call first):
  File "{_LIBRARY}", line 5 in wait
  File "{_LIBRARY}", line 4 in run

Current thread 0x3 (most recent call first):
  File "/home/me/photos.py", line 7 in read
  File "/home/me/photos.py", line 3 in __getitem__
  File "{_ENGINE}", line 100 in run
  File "/home/me/train.py", line 50 in <module>
""",
            """  File "/home/me/photos.py", line 7 in read
  File "/home/me/photos.py", line 3 in __getitem__""",
            id="threads",
        ),
        pytest.param(
            f"""Current thread 0x3 (most recent call first):
  File "{_ENGINE}", line 100 in run
  File "{_ENGINE}", line 90 in attempt""",
            f'  File "{_ENGINE}", line 100 in run',
            id="feedline itself",
        ),
    ],
)
def test_only_the_users_frames_of_a_stack_are_shown(stacks: str, shown: str) -> None:
    assert users_frames(stacks) == shown
