"""The machine's decisions about workers that die, grow or do not answer; the tests play the workers."""

from __future__ import annotations

import pytest

from feedline.delivery.machine.flights import LOOK_AT, START, TAKE_BACK, Decision
from feedline.delivery.machine.recovery import Seen
from feedline.errors import TooManyOpenFiles, WorkerDied, WorkerTimeout, WorkerWarning
from feedline.types import Call, Notes, Position
from tests.delivery.machine.world import World

SET_EPOCH = Call("set_epoch", (3,))


# -- workers that die ---


def test_a_new_worker_gets_the_tasks_of_the_dead_one_with_the_same_slots() -> None:
    world = World(6, depth=3, restarts=2)
    world.decided()
    before = [(task.id, task.slot) for task in world.tasks[0]]
    others = list(world.tasks[1])
    world.replace(0)
    assert world.given()[0] == [[0], [2], [4]], "the task it had started comes first"
    after = [(task.id, task.slot) for task in world.tasks[0]]
    assert [slot for _, slot in after] == [slot for _, slot in before]
    assert not {number for number, _ in after} & {number for number, _ in before}, (
        "new ids, so that a late answer is recognised"
    )
    assert world.tasks[1] == others, "the tasks of the others stay where they are"
    assert (world.outstanding(), world.counters.restarts) == ([3, 3], 1)
    ((message, category),) = world.machine.crew.pending_warnings
    assert category is WorkerWarning
    assert "worker 0 is gone It was making batch 0 (sample 0)." in message
    assert "restart 1 of 2" in message


def test_a_death_over_the_budget_is_fatal() -> None:
    world = World(restarts=1)
    world.replace(0)
    death = WorkerDied("the last straw")
    world.die(1, death=death)
    assert world.machine.crew.fatal is death
    assert world.decided() == []
    world.machine.close()
    assert world.slots.taken == set()


def test_a_failed_replacement_is_fatal_and_names_its_cause() -> None:
    world = World(restarts=1)
    death = WorkerDied("worker 0 is gone")
    world.die(0, death=death)
    last = TooManyOpenFiles("starting a worker")
    world.machine.crew.not_started(0, last)
    assert world.machine.crew.fatal is last
    assert last.__cause__ is death
    world.machine.close()
    assert world.slots.taken == set()


def test_the_first_task_of_a_new_worker_has_its_resume_state() -> None:
    world = World(6, restarts=2)
    world.answer(0, notes=Notes(Position({"made": 1})))
    world.answer(1)
    world.replace(0)
    assert world.given()[0] == [[2]]
    assert [task.resume for task in world.tasks[0]] == [Position({"made": 1})]
    world.answer(0, notes=Notes(Position({"made": 2})))
    world.replace(0)
    assert world.given()[0] == [], "it has no tasks"
    while world.take() >= 0:
        continue
    assert world.given()[0] == [[4]]
    assert [task.resume for task in world.tasks[0]] == [Position({"made": 2})], "the state comes with the next task"


# -- workers that have grown ---


def test_a_worker_that_has_grown_is_replaced_after_the_task_it_had_started() -> None:
    world = World(6, depth=3)
    world.decided()
    world.machine.crew.grown(0)
    assert world.decided() == [(TAKE_BACK, 0, None)]
    world.take_back(0)
    world.machine.flights.call(SET_EPOCH)
    assert world.given()[0] == [[0]], "its successor gets the rest, with a dataset that includes the call"
    world.machine.crew.grown(0)
    assert world.given()[0] == [[0]], "a second report changes nothing"
    world.answer(0)
    assert world.decided() == [(START, 0)]
    world.machine.crew.started(0)
    assert world.given()[0] == [[2], [4]], "in the original order"
    assert (world.counters.recycled, world.counters.restarts, world.outstanding()) == (1, 0, [2, 4])
    assert world.machine.crew.pending_warnings == []


# -- workers that do not answer ---


def let_time_out(world: World) -> list[Decision]:
    """Let the timeout of a batch pass; return the decisions."""
    world.decided()
    world.machine.ask()
    world.machine.wait()
    world.machine.flights.now_s += 31.0
    world.machine.lateness.judge()
    return world.decided()


SEEN = Seen(4001, 'File "loading.py", line 7 in read\n')


def test_a_worker_that_does_not_answer_is_inspected_and_reported() -> None:
    world = World(timeout_s=30.0)
    assert let_time_out(world) == [(LOOK_AT, 0, False)]
    with pytest.raises(WorkerTimeout, match=r"worker 0 \(pid 4001\) is still at batch 0 \(sample 0\)"):
        world.machine.lateness.seen(0, SEEN)


def test_a_worker_that_does_not_answer_is_killed_and_the_warning_says_why() -> None:
    world = World(timeout_s=30.0, restarts=1)
    assert let_time_out(world) == [], "it is still getting ready, for all that is known"
    assert let_time_out(world) == [(LOOK_AT, 0, True)]
    world.machine.lateness.seen(0, SEEN._replace(is_killed=True))
    world.die(0, death=WorkerDied("killed by signal 9"))
    assert world.decided() == [(START, 0)]
    world.machine.crew.started(0)
    assert world.given()[0] == [[0], [2]]
    assert "DataLoader timed out after 30.0 seconds" in world.machine.crew.pending_warnings[0][0]
    assert "line 7 in read" in world.machine.crew.pending_warnings[0][0]


def test_a_batch_is_not_late_while_another_worker_is_started_for_it() -> None:
    world = World(timeout_s=30.0, restarts=1)
    let_time_out(world)
    assert let_time_out(world) == [(LOOK_AT, 0, True)]
    world.machine.lateness.seen(0, SEEN._replace(is_killed=True))
    world.machine.flights.now_s += 31.0
    world.die(0, death=WorkerDied("killed by signal 9"))
    world.machine.lateness.judge()
    assert world.decided() == [(START, 0)]


def test_a_worker_that_answers_tasks_of_an_abandoned_epoch_is_not_stuck() -> None:
    world = World(4, workers=1, depth=4, timeout_s=30.0)
    world.decided()
    world.machine.leave_epoch()
    world.decided()  # nothing can be taken back, since all have been read
    world.begin(1)
    world.machine.flights.now_s += 20.0
    world.machine.ask()
    world.machine.wait()
    for _ in range(3):
        world.machine.flights.now_s += 20.0
        world.answer(0)
        world.machine.lateness.judge()
        assert world.decided() == []
    world.machine.flights.now_s += 31.0
    world.machine.lateness.judge()
    assert world.decided() == [(LOOK_AT, 0, False)]


def test_no_worker_is_killed_when_no_restart_is_left() -> None:
    world = World(timeout_s=30.0, restarts=1)
    world.replace(1)
    let_time_out(world)
    assert let_time_out(world) == [(LOOK_AT, 0, False)]
