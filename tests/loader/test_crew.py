"""Workers at work: tasks, answers, and the slots behind them."""

from __future__ import annotations

import gc
import weakref

import pytest

from feedline.abc import Engine
from feedline.errors import TooManyOpenFiles, WorkerDied, WorkerRestarted, WorkerStartError
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader.counters import Counters
from feedline.loader.crew import Crew
from feedline.transport.arena import Arena
from feedline.types import Call, Result, ResultKind, Resume, Task
from tests.loader.hand import Bench, HandEngine


@pytest.mark.parametrize("kind", [ResultKind.FAILED, ResultKind.ENDED])
def test_a_task_without_a_batch_gives_its_slot_back(kind: ResultKind) -> None:
    bench = Bench()
    bench.crew.submit(bench, 0, Task(0, 0), 1)
    bench.engine.finish(kind)
    ((_, result),) = bench.crew.collect(0.0)
    assert bench.free_slots() == 4
    if kind is ResultKind.FAILED:
        with pytest.raises(ValueError, match="torn"):
            bench.crew.deliver(result)
        assert bench.counters.failures == 1


def test_indices_that_cannot_be_sent_leave_no_trace() -> None:
    bench = Bench()
    with pytest.raises(TypeError, match="cannot be sent"):
        bench.crew.submit(bench, 0, Task(0, "unsendable"), 0)
    assert bench.free_slots() == 4
    assert [view.outstanding for view in bench.crew.workers] == [0, 0]


@pytest.mark.parametrize("kind", [ResultKind.DONE, ResultKind.FAILED, ResultKind.ENDED])
def test_answers_to_an_epoch_that_was_left_are_dropped_with_their_slots(kind: ResultKind) -> None:
    bench = Bench()
    for number in range(3):
        bench.crew.submit("epoch", number, Task(0, number), number % 2)
    begun = bench.engine.tasks.pop(0)  # the first has begun: it cannot be taken back
    bench.crew.abandon("epoch")
    assert bench.engine.tasks == []
    assert bench.free_slots() == 3
    bench.engine.tasks.append(begun)
    bench.engine.finish(kind)
    assert bench.crew.collect(0.0) == []
    assert bench.free_slots() == 4
    assert [view.outstanding for view in bench.crew.workers] == [0, 0]


def test_closing_takes_back_every_slot_wherever_its_batch_is() -> None:
    bench = Bench()
    for number in range(3):
        bench.crew.submit(bench, number, Task(0, number), 0)
    bench.engine.finish()  # arrived, and never delivered
    bench.crew.collect(0.0)
    bench.engine.finish()  # answered, and never collected
    bench.crew.close()
    bench.crew.close()
    assert bench.engine.closed == 1
    assert bench.free_slots() == 4


def test_there_is_room_while_slots_are_free_or_nothing_is_under_way() -> None:
    bench = Bench(slots=1)
    assert bench.crew.room_for_more()
    bench.crew.submit(bench, 0, Task(0, 0), 0)
    assert not bench.crew.room_for_more()
    held = bench.arena.acquire()
    assert held == -1
    bench.engine.finish()
    bench.crew.collect(0.0)
    assert bench.crew.room_for_more(), "nothing is under way: the next batch travels without a slot"


def test_a_last_touch_is_given_to_every_batch() -> None:
    engine = HandEngine()
    engine.arena = Arena(2, shared=True, budget=1 << 20)
    crew = Crew(engine, engine.arena, NumpyFramework(), Counters(), prepare=lambda batch: ("touched", batch))
    crew.submit("epoch", 0, Task(0, 3), 0)
    engine.finish()
    ((_, result),) = crew.collect(0.0)
    assert crew.deliver(result)[0] == "touched"


class Torn(Exception):
    pass


def test_a_failed_batch_is_not_kept_alive_by_its_traceback() -> None:
    bench = Bench()
    exc = Torn()
    result = Result(ResultKind.FAILED, 0, 0, exc)
    gone = weakref.ref(exc)
    with pytest.raises(Torn):
        bench.crew.deliver(result)
    del exc, result
    gc.disable()
    try:
        assert gone() is None
    finally:
        gc.enable()


# -- workers that die ---


def test_another_worker_gets_what_the_dead_one_had_in_the_same_slots() -> None:
    bench = Bench(restarts=2)
    pending = [bench.crew.submit(bench, number, Task(0, number), 0) for number in range(3)]
    begun = bench.engine.begin()
    before = [(task.task.id, task.task.slot) for task in pending]
    assert bench.let_die() == []
    assert bench.engine.replaced == [0]
    assert bench.given() == [(0, 0), (0, 1), (0, 2)], "what it had begun comes first"
    after = [(task.task.id, task.task.slot) for task in pending]
    assert [slot for _, slot in after] == [slot for _, slot in before]
    assert not {number for number, _ in after} & {number for number, _ in before}, "a late answer would be recognised"
    assert begun.slot == pending[0].task.slot
    assert [view.outstanding for view in bench.crew.workers] == [3, 0]
    for number in range(3):
        bench.engine.finish()
        ((answered, result),) = bench.crew.collect(0.0)
        assert answered is pending[number]
        assert bench.crew.deliver(result)[0].tolist() == [number] * 1000
    del result
    assert bench.free_slots() == 4
    assert bench.counters.restarts == 1


def test_the_tasks_of_the_other_workers_stay_where_they_are() -> None:
    bench = Bench(restarts=1)
    bench.crew.submit(bench, 0, Task(0, 7), 1)
    other = bench.engine.tasks[0][1].id
    bench.crew.submit(bench, 1, Task(0, 8), 0)
    bench.let_die(0)
    assert (1, other) in [(worker, task.id) for worker, task in bench.engine.tasks]


def test_what_the_worker_said_before_it_died_is_taken_in_first() -> None:
    bench = Bench(restarts=1)
    bench.crew.submit(bench, 0, Task(0, 7), 0)
    bench.engine.finish()
    bench.engine.die()
    ((pending, result),) = bench.crew.collect(0.0)
    assert pending is not None
    assert bench.engine.replaced == [], "not before the epoch has had a look at it"
    bench.crew.slots.discard(result)
    assert bench.crew.collect(0.0) == []
    assert (bench.engine.replaced, bench.given()) == ([0], [])


def test_a_death_over_the_budget_is_reported() -> None:
    bench = Bench(restarts=1)
    death = WorkerDied("the last straw")
    assert bench.let_die() == []
    ((pending, result),) = bench.let_die(1, death)
    assert pending is None
    assert (result.kind, result.payload) == (ResultKind.DIED, death)
    assert bench.engine.replaced == [0]


def test_every_epoch_has_the_whole_budget() -> None:
    bench = Bench(restarts=1)
    for _ in range(3):
        bench.crew.begin_epoch(bench)
        assert bench.let_die() == []
    assert bench.engine.replaced == [0, 0, 0]


def test_slots_are_balanced_after_the_end_of_a_crew_that_lost_a_worker() -> None:
    bench = Bench()
    for number in range(3):
        bench.crew.submit(bench, number, Task(0, number), number % 2)
    bench.engine.begin()
    ((pending, _),) = bench.let_die()
    assert pending is None
    bench.crew.close()
    assert bench.free_slots() == 4


def test_the_tasks_of_an_epoch_that_was_left_are_not_done_again() -> None:
    bench = Bench(restarts=1)
    bench.crew.submit(bench, 0, Task(0, 7), 0)
    bench.engine.begin()
    bench.crew.abandon(bench)
    assert bench.let_die() == []
    assert (bench.engine.replaced, bench.given(), bench.free_slots()) == ([0], [], 4)


def test_the_user_is_told_of_every_restart_when_nothing_can_be_disturbed() -> None:
    bench = Bench(restarts=2)
    bench.crew.submit(bench, 5, Task(0, [70, 71]), 0)
    bench.engine.begin()
    bench.let_die()
    with pytest.warns(WorkerRestarted, match=r"worker 0 is gone.*batch 5 \(samples 70, 71\).*restart 1 of 2"):
        bench.crew.speak()
    bench.crew.speak()


def test_a_new_worker_is_told_where_to_go_on_with_its_first_task() -> None:
    bench = Bench(restarts=1)
    for number in range(2):
        bench.crew.submit(bench, number, Task(0, number), 0)
    bench.resume = Resume({"place": 3})
    bench.let_die()
    assert [task.resume for _, task in bench.engine.tasks] == [Resume({"place": 3}), None]
    assert bench.owed == {}


def test_a_new_worker_without_a_task_is_told_with_the_next_one() -> None:
    bench = Bench(restarts=1)
    bench.resume = Resume({"place": 3})
    bench.let_die()
    assert bench.owed == {0: Resume({"place": 3})}


class CannotStart(HandEngine):
    def replace(self, worker: int) -> None:
        raise TooManyOpenFiles("starting a worker")


def test_a_worker_that_cannot_be_replaced_is_the_end_and_says_what_led_to_it() -> None:
    bench = Bench(restarts=1, engine=CannotStart())
    death = WorkerDied("worker 0 is gone")
    bench.engine.die(0, death)
    bench.crew.collect(0.0)
    ((pending, result),) = bench.crew.collect(0.0)
    assert (pending, type(result.payload)) == (None, TooManyOpenFiles)
    assert result.payload.__cause__ is death


def test_an_engine_that_never_replaces_workers_ends_the_epoch() -> None:
    class Plain(HandEngine):
        replace = Engine.replace

    bench = Bench(restarts=1, engine=Plain())
    bench.engine.die()
    bench.crew.collect(0.0)
    ((_, result),) = bench.crew.collect(0.0)
    assert type(result.payload) is WorkerStartError


# -- calls ---


def calls_of(bench: Bench) -> list[tuple[int, str]]:
    return [(worker, task.indices.name) for worker, task in bench.engine.tasks if isinstance(task.indices, Call)]


def test_a_call_goes_to_every_worker_after_what_it_was_given_and_needs_no_slot() -> None:
    bench = Bench()
    bench.crew.submit(bench, 0, Task(0, 7), 1)
    bench.crew.call(Call("set_epoch", (3,)))
    assert calls_of(bench) == [(0, "set_epoch"), (1, "set_epoch")]
    assert [view.outstanding for view in bench.crew.workers] == [1, 2]
    assert bench.free_slots() == 3


def test_the_answer_to_a_call_is_no_batch() -> None:
    bench = Bench()
    bench.crew.call(Call("set_epoch", (3,)))
    for worker, task in bench.engine.tasks:
        bench.engine.answers.append(Result(ResultKind.DONE, worker, task.id))
    bench.engine.tasks.clear()
    assert bench.crew.collect(0.0) == []
    bench.crew.check_calls()
    assert [view.outstanding for view in bench.crew.workers] == [0, 0]


def test_a_call_that_fails_is_raised_once() -> None:
    bench = Bench()
    bench.crew.call(Call("set_epoch", (3,)))
    for worker, task in bench.engine.tasks:
        bench.engine.answers.append(Result(ResultKind.FAILED, worker, task.id, ValueError(f"worker {worker}")))
    bench.engine.tasks.clear()
    bench.crew.collect(0.0)
    with pytest.raises(ValueError, match="worker"):
        bench.crew.check_calls()
    bench.crew.check_calls()


def test_a_call_that_a_dead_worker_did_not_hear_is_not_repeated_to_the_new_one() -> None:
    """Its copy of the dataset is the one of this process, which has heard it."""
    bench = Bench(restarts=2)
    bench.crew.submit(bench, 0, Task(0, 7), 0)
    bench.crew.call(Call("set_epoch", (3,)))
    bench.engine.begin()
    bench.let_die()
    assert calls_of(bench) == [(1, "set_epoch")]
    assert bench.crew.workers[0].outstanding == 1, "the batch"
    bench.crew.call(Call("set_epoch", (4,)))
    assert calls_of(bench) == [(1, "set_epoch"), (0, "set_epoch"), (1, "set_epoch")], "what comes later is heard"


def test_a_worker_that_dies_in_a_call_is_replaced_without_it() -> None:
    bench = Bench(restarts=1)
    bench.crew.call(Call("set_epoch", (3,)))
    bench.engine.begin()
    assert bench.let_die() == []
    assert calls_of(bench) == [(1, "set_epoch")]
    with pytest.warns(WorkerRestarted) as told:
        bench.crew.speak()
    assert "batch" not in str(told[0].message), "it was making none"


def test_calls_outlive_the_epoch_in_which_they_were_made() -> None:
    bench = Bench()
    bench.crew.submit("epoch", 0, Task(0, 7), 0)
    bench.crew.call(Call("set_epoch", (3,)))
    bench.crew.submit("epoch", 1, Task(0, 8), 0)
    bench.crew.abandon("epoch")
    assert calls_of(bench) == [(0, "set_epoch"), (1, "set_epoch")]
    assert len(bench.engine.tasks) == 2
    assert bench.free_slots() == 4
