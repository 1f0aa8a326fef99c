"""Changing the number of workers: new ones get tasks, surplus ones finish theirs."""

from __future__ import annotations

from feedline.delivery.machine.flights import RETIRE, START
from feedline.errors import WorkerStartError
from feedline.types import Call
from tests.delivery.machine.world import World


def is_settled(world: World) -> bool:
    return world.machine.crew.have_all_answered


def deliver_rest(world: World, order: list[int]) -> list[int]:
    """Answer and deliver all remaining batches; `order` says which workers answer first."""
    delivered: list[int] = []
    while True:
        try:
            ordinal = world.take()
        except StopIteration:
            return delivered
        if ordinal >= 0:
            delivered.append(ordinal)
            continue
        world.decided()
        worker = next(worker for worker in order if world.tasks[worker])
        world.answer(worker)


def test_new_workers_are_started_and_get_tasks() -> None:
    world = World(12, workers=1, depth=2, most=3)
    assert world.given() == [[[0], [1]], [], []]
    assert world.resize(3) == [(START, 1), (START, 2)]
    world.machine.fill()
    assert world.given() == [[[0], [1], [3]], [[4]], [[2], [5]]]  # batch i goes to worker i mod 3
    assert deliver_rest(world, [0, 1, 2]) == list(range(12))


def test_the_window_follows_the_number_of_workers() -> None:
    world = World(40, workers=2, depth=2, slots=40, most=4)
    world.resize(4)
    world.machine.fill()
    assert sum(world.outstanding()) == 8
    world.resize(1)
    world.answer(0)
    assert world.take() == 0
    assert sum(world.outstanding()) == 7, "no new tasks until the window has shrunk"


def test_the_death_of_a_finished_surplus_worker_is_not_a_restart() -> None:
    world = World(2, workers=2, depth=1, restarts=3, most=2)
    world.given()
    world.machine.crew.resize(1)
    world.answer(1)
    world.machine.crew.died(1, RuntimeError("gone"), [])
    assert world.decided() == [(RETIRE, 1)]
    assert world.counters.restarts == 0


def test_if_new_workers_fail_to_start_the_old_number_stays() -> None:
    world = World(8, workers=1, depth=1, most=3)
    world.machine.crew.resize(3)
    assert world.decided() == [(START, 1), (START, 2)]
    world.machine.crew.not_started(1, WorkerStartError("too many processes"))
    world.machine.crew.started(2)
    assert world.decided() == [(RETIRE, 2)]
    assert len(world.machine.flights.active) == 1
    assert world.machine.crew.fatal is None
    assert deliver_rest(world, [0]) == list(range(8))


def test_an_elastic_machine_continues_without_a_worker_that_finds_no_resources() -> None:
    world = World(12, workers=1, depth=2, slots=12, most=3)
    world.machine.crew.is_elastic = True
    world.resize(3)
    world.machine.fill()
    world.machine.flights.call(Call("note"))
    assert world.given()[1] == [[4], Call("note")]
    world.tasks[1].clear()
    world.machine.crew.died(1, WorkerStartError("no place"), [])
    assert world.decided() == [(RETIRE, 1)]
    assert world.machine.crew.fatal is None
    assert world.counters.restarts == 0
    assert len(world.machine.flights.active) == 1
    assert deliver_rest(world, [2, 0]) == list(range(12))
    assert world.slots.taken == set()
    assert is_settled(world)


def test_the_first_worker_and_a_fixed_number_of_workers_must_start() -> None:
    for worker, is_elastic in ((0, True), (1, False)):
        world = World(4, workers=2, most=2)
        world.machine.crew.is_elastic = is_elastic
        world.given()
        world.machine.crew.died(worker, WorkerStartError("no place"), [])
        assert isinstance(world.machine.crew.fatal, WorkerStartError)
