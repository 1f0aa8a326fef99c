"""The machine's decisions about tasks, answers, calls and abandoned epochs.

There is no engine; the tests play the workers. For workers that die, grow or do not answer see test_machine_workers.py.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from feedline.delivery.machine.flights import LOOK_AT, TAKE_BACK, Decision
from feedline.types import Call, Position, ResultKind
from tests.delivery.machine.world import World

# -- tasks and answers ---


def test_an_epoch_from_its_first_task_to_its_end() -> None:
    world = World(5)
    assert world.given() == [[[0], [2]], [[1], [3]]]
    assert world.take() < 0
    came: list[int] = []
    while len(came) < 5:
        world.answer(len(came) % 2)
        came.append(world.take())
    assert came == [0, 1, 2, 3, 4]
    with pytest.raises(StopIteration):
        world.take()
    assert (world.slots.taken, world.outstanding(), world.machine.flights.is_busy) == (set(), [0, 0], False)


def test_tasks_wait_for_a_slot_while_anything_is_in_flight() -> None:
    world = World(slots=1)
    assert world.given() == [[[0]], []]
    world.answer(0)
    assert world.machine.take() == 0
    world.epoch.pop(0)  # the training loop keeps the batch and its slot
    world.machine.fill()
    assert world.given() == [[], [[1]]]
    assert world.tasks[1][0].slot == -1, "nothing else is in flight, so the task goes without a slot"


# -- work that moves to an idle worker ---


def let_relieve(world: World) -> list[Decision]:
    """Let worker 1 finish all its tasks while worker 0 is late; return the decisions."""
    while True:
        world.decided()
        if world.tasks[1]:
            world.answer(1)
        elif world.take() < 0:
            break
    assert world.epoch.in_flight[world.epoch.numbers.delivered].worker == 0
    assert world.outstanding()[0] > 1
    world.machine.flights.now_s += 1000.0
    world.machine.wait()
    return world.decided()


def test_work_moves_from_a_late_worker_to_an_idle_one() -> None:
    world = World()
    assert let_relieve(world) == [(TAKE_BACK, 0, 1)]
    world.take_back(0)
    assert world.given() == [[[0]], [[2]]]
    assert (world.outstanding(), world.counters.relieved) == ([1, 1], 1)
    world.answer(1)
    world.answer(0)
    assert [world.take() for _ in range(4)] == [0, 1, 2, 3]


def test_a_worker_with_nothing_to_take_back_is_not_asked_again_until_a_worker_answers() -> None:
    world = World(6)
    assert let_relieve(world) == [(TAKE_BACK, 0, 1)]
    world.take_back(0, begun=2)
    world.machine.wait()
    assert world.given() == [[[0], [2], [4]], [[5]]], "tasks beyond the window are assigned instead"
    assert (world.counters.relieved, world.counters.run_ahead) == (0, 2)
    assert let_relieve(world) == [(TAKE_BACK, 0, 1)]


def test_a_worker_with_only_one_task_does_not_keep_others_from_being_relieved() -> None:
    """Even if it has been late for longer than they have."""
    world = World(5, workers=3)
    assert world.given() == [[[0], [3]], [[1], [4]], [[2]]]
    moves = []
    for _ in range(2):
        world.answer(2)
        world.machine.flights.now_s += 1000.0
        while not world.tasks[2]:
            world.machine.wait()
            (move,) = world.decided()
            world.take_back(move[1])
            world.decided()
            moves.append(move)
    assert moves == [(TAKE_BACK, 0, 2), (TAKE_BACK, 0, 2), (TAKE_BACK, 1, 2)]


def test_a_scheduler_that_found_no_late_worker_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(6, workers=3)
    asked: list[float] = []
    monkeypatch.setattr(world.epoch.scheduler, "relieve", lambda workers, now_s, typical_s: asked.append(now_s))
    world.decided()
    world.answer(2)
    world.answer(2)
    world.machine.flights.now_s += 10.0
    began_s = world.machine.flights.now_s
    for pause_s in (0.0, 0.001, 0.001, 1.0):
        world.machine.flights.now_s += pause_s
        world.machine.wait()
        world.decided()
    assert asked == [began_s, world.machine.flights.now_s]


def test_nothing_moves_from_a_worker_that_has_yet_to_get_its_resume_state() -> None:
    world = World(resumes={0: Position({"n": 1})})
    assert let_relieve(world) == [], "a task that was taken back and has to stay would end up behind the others"
    assert world.given() == [[[0], [2]], []]
    assert world.tasks[0][0].resume == Position({"n": 1})


def stop_all(world: World, moves: int) -> list[tuple[int, int]]:
    """Let no worker start any task; return the moves of the last task, at most `moves` of them."""
    taken: list[tuple[int, int]] = []
    for _ in range(moves * 20):
        world.machine.flights.now_s += 0.1
        world.machine.wait()
        for what, worker, *_ in world.decided():
            if what is not TAKE_BACK or len(taken) == moves:
                return taken
            world.take_back(worker, begun=0)
            world.decided()
            taken.append((worker, next(number for number, tasks in enumerate(world.tasks) if tasks)))
        world.machine.lateness.judge()
    return taken


def last_task(**options: Any) -> World:
    """Return a world of three idle workers; the first one just got the last task."""
    world = World(4, workers=3, depth=1, **options)
    for worker in (0, 1, 2):
        world.answer(worker)
    assert [world.take() for _ in range(3)] == [0, 1, 2]
    assert world.given() == [[[3]], [], []]
    return world


def test_a_task_moves_to_each_stopped_worker_once_and_its_last_holder_is_replaced() -> None:
    world = last_task(timeout_s=2.0, restarts=100)
    assert stop_all(world, 10) == [(0, 1), (1, 2)]
    for _ in range(100):
        world.machine.wait()
        world.machine.lateness.judge()
        looks = world.decided()
        if looks:
            break
        world.machine.flights.now_s += 0.1
    assert looks == [(LOOK_AT, 2, True)]


@pytest.mark.parametrize("options", [{}, {"timeout_s": 1000.0}, {"restarts": 100}])
def test_without_a_replacement_every_stopped_worker_is_tried_again_in_turn(options: dict[str, Any]) -> None:
    assert stop_all(last_task(**options), 6) == [(0, 1), (1, 2), (2, 0), (0, 1), (1, 2), (2, 0)]


# -- leaving an epoch ---


def test_closing_takes_back_every_slot_wherever_its_batch_is() -> None:
    world = World(6, depth=3, restarts=1)
    world.answer(0)  # ready, but never delivered
    world.die(1)  # and no replacement started
    world.machine.close()
    world.machine.close()
    assert world.slots.taken == set()
    assert (world.machine.flights.is_busy, list(world.machine.decisions)) == (False, [])


def test_a_machine_that_is_dropped_frees_its_slots_at_once() -> None:
    """A cycle of references would keep the arena mapped until the garbage collector runs."""
    world = World(4)
    world.answer(0)
    world.take()
    slots = weakref.ref(world.slots)
    gc.disable()
    try:
        del world
        assert slots() is None
    finally:
        gc.enable()


# -- calls ---


SET_EPOCH = Call("set_epoch", (3,))


def test_a_call_that_fails_is_raised_once() -> None:
    world = World(0)
    world.machine.flights.call(SET_EPOCH)
    world.answer(0, ResultKind.FAILED)
    world.answer(1, ResultKind.FAILED)
    with pytest.raises(ValueError, match="torn"):
        world.machine.ask()
    world.machine.ask()


@pytest.mark.parametrize("begun", [0, 1])
def test_a_pending_call_of_a_dead_worker_is_not_repeated_to_the_new_one(begun: int) -> None:
    """The new worker copies the dataset of this process, which has had the call."""
    world = World(0, restarts=1)
    world.machine.flights.call(SET_EPOCH)
    world.replace(0, begun)
    assert world.given() == [[], [SET_EPOCH]]
    assert "batch" not in world.machine.crew.pending_warnings[0][0], "it was not making a batch"
    world.machine.flights.call(Call("set_epoch", (4,)))
    assert world.given() == [[Call("set_epoch", (4,))], [SET_EPOCH, Call("set_epoch", (4,))]]
