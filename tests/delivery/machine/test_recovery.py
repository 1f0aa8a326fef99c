"""Workers that die are replaced, and a sample that kills workers is found.

The worlds of `tests/simulation` have the workers. That nothing is lost whatever dies is one of their laws; here are the
decisions about samples that kill.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from feedline.delivery.machine.epoch import Flight, Limits
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.recovery import Recovery, Seen, users_frames
from feedline.errors import WorkerDied
from feedline.faults import Policy, Retry
from feedline.faults.policy import FunctionPolicy
from feedline.system.ranks import Share
from feedline.types import Task
from feedline.workers import runner
from tests.simulation import world
from tests.simulation.dataset import Items, Killed
from tests.simulation.engine import Trace
from tests.simulation.scenario import Scenario, Troubles

SKIPS = Policy(otherwise="skip", max_share=1.0)
REPLACES = Policy(otherwise="replace", max_share=1.0)


class Fatal(Items):
    """Some samples kill their worker once, besides those that always do."""

    once: set[int]

    def __getitem__(self, index: int) -> int:
        if index in self.once:
            self.once.remove(index)
            raise Killed
        return super().__getitem__(index)


class Run:
    """An epoch whose batches are lists, even those of single samples."""

    def __init__(
        self,
        samples: int,
        batch_size: int | None,
        *killers: int,
        once: set[int] | None = None,
        policy: Any = SKIPS,
        workers: int = 1,
        restarts: int = 1000,
        seed: int = 0,
        fault_budget: FaultBudget | None = None,
    ) -> None:
        scenario = Scenario(
            seed=seed,
            samples=samples,
            batch_size=batch_size,
            workers=workers,
            restarts=restarts,
            policy=policy,
            troubles=Troubles(killers=frozenset(killers)),
        )
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(world, "dataset_of", Fatal)
            self.world = world.World(scenario, workers, Share(), Trace(), random.Random(seed))
        Fatal.once = once or set()
        self.world.books.most_deaths = 10**6
        self.world.fault_budget = fault_budget or self.world.fault_budget
        self.world.begin(0)

    @property
    def faults(self) -> list[tuple[object, str]]:
        return [(fault.index, fault.action) for fault in self.world.fault_budget.log]

    @property
    def restarts(self) -> int:
        return self.world.counters.restarts

    def take(self, count: int = 1000) -> list[list[int]]:
        """Take `count` batches, or all that are left."""
        batches: list[list[int]] = []
        while len(batches) < count:
            try:
                batch, _ = self.world.next()
            except StopIteration:
                break
            batches.append(batch if isinstance(batch, list) else [batch])
        return batches


def numbers(batches: list[list[int]]) -> list[int]:
    return sorted(index for batch in batches for index in batch)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_without_a_policy_the_error_names_the_sample_and_only_its_batch_is_lost(batch_size: int | None) -> None:
    run = Run(12, batch_size, 5, policy=Policy(), workers=2)
    before = run.take(5 if batch_size is None else 1)
    with pytest.raises(WorkerDied, match=r"Sample 5 kills every worker that makes it.* was killed"):
        run.take(1)
    left = set(range(12)) - ({5} if batch_size is None else {4, 5, 6, 7})
    assert numbers(before + run.take()) == sorted(left)
    assert run.faults == [(5, "raise")]


# -- policies ---


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_neighbour_that_kills_too_is_replaced_and_neither_is_requested_again(batch_size: int | None) -> None:
    run = Run(9, batch_size, 4, 5, policy=REPLACES)
    assert numbers(run.take()) == [0, 1, 2, 3, 6, 6, 6, 7, 8]
    again = Run(9, batch_size, 4, 5, policy=REPLACES, fault_budget=run.world.fault_budget)
    assert numbers(again.take()) == [0, 1, 2, 3, 6, 6, 6, 7, 8]
    assert again.restarts == 0


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_replacement_is_not_blamed_after_one_death(batch_size: int | None) -> None:
    run = Run(9, batch_size, 4, once={5}, policy=REPLACES)
    assert numbers(run.take()) == [0, 1, 2, 3, 5, 5, 6, 7, 8]
    assert run.faults == [(4, "replace")]


def test_a_killer_can_be_retried_before_it_is_skipped() -> None:
    run = Run(6, 3, 4, policy=Policy(otherwise=Retry(2, then="skip", wait_s=0.0), max_share=1.0))
    assert numbers(run.take()) == [0, 1, 2, 3, 5]
    (fault,) = run.world.fault_budget.log
    assert (fault.index, fault.action, fault.attempt) == (4, "skip", 3)


def test_an_error_of_the_policy_is_raised_in_place_of_the_batch() -> None:
    def ask(failure: Any) -> Any:
        assert failure.stage == "worker"
        raise RuntimeError("of the policy")

    run = Run(9, 3, 4, policy=FunctionPolicy(ask))
    assert run.take(1) == [[0, 1, 2]]
    with pytest.raises(RuntimeError, match="of the policy") as caught:
        run.take(1)
    assert any("sample 4" in note for note in caught.value.__notes__)
    assert run.take() == [[6, 7, 8]]


# -- giving up ---


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_when_the_budget_is_spent_the_death_is_raised_and_the_workers_end(restarts: int) -> None:
    run = Run(12, 4, 5, workers=2, restarts=restarts, policy=Policy())
    with pytest.raises(WorkerDied, match="was killed"):
        run.take()
    assert run.restarts == restarts
    assert run.world.closed


def test_killers_found_before_the_budget_is_spent_are_in_the_log() -> None:
    run = Run(4, 4, 1, 2, restarts=6)
    with pytest.raises(WorkerDied, match=r"restarts=6 allows no more. Samples that were found to kill are in"):
        run.take()
    assert run.faults == [(1, "skip")]
    assert Run(4, 4, 1, 2, restarts=6, fault_budget=run.world.fault_budget).take() == [[0, 3]]


@pytest.mark.parametrize("was_killed", [True, None])
def test_workers_killed_during_their_start_are_replaced_while_restarts_are_left(was_killed: bool | None) -> None:
    recovery = Recovery(restarts=50)
    death = WorkerDied("worker 0 was killed by signal 9 (SIGKILL)")
    death.was_killed, death.was_ready = was_killed, False
    assert [recovery.end_by(death, None) for _ in range(51)] == [None] * 50 + [death]


# -- workers killed from outside ---


@pytest.mark.parametrize("batch_size", [None, 1, 8])
def test_samples_are_not_blamed_if_each_kills_one_worker(batch_size: int | None) -> None:
    """As if every worker was killed once from outside, whatever it was making."""
    for seed in range(12):
        run = Run(96, batch_size, 17, 70, once=set(range(96)) - {17, 70}, workers=3, restarts=10**6, seed=seed)
        assert numbers(run.take()) == [index for index in range(96) if index not in (17, 70)]
        assert set(run.faults) == {(17, "skip"), (70, "skip")}, seed


def test_killers_are_found_quickly_if_nothing_else_kills_workers() -> None:
    run = Run(96, 8, 17, 70, workers=3)
    run.take()
    assert run.restarts == 2 * (2 + 2), "the batch, and the sample alone"


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
