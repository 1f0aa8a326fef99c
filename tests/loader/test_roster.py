"""Who has which task: given, moved, taken back."""

from __future__ import annotations

import pytest

from feedline.loader.pending import CALLS, Pending
from feedline.loader.roster import Roster
from feedline.types import Call, Result, ResultKind, Resume, Task
from tests.loader.hand import Bench, HandEngine


def test_work_moves_from_one_worker_to_another() -> None:
    bench = Bench()
    pending = bench.crew.submit(bench, 0, Task(0, 9), 0)
    assert bench.crew.move(0, 1)
    assert pending.worker == 1
    assert [view.outstanding for view in bench.crew.workers] == [0, 1]
    assert bench.counters.relieved == 1
    assert not bench.crew.move(0, 1), "nothing is left to move"
    bench.engine.finish()
    ((answered, result),) = bench.crew.collect(0.0)
    assert answered is pending
    assert result.worker == 1


@pytest.mark.parametrize("task", [Task(0, 7, resume=Resume({"n": 1})), None])
def test_what_is_meant_for_one_worker_does_not_move(task: Task | None) -> None:
    bench = Bench()
    if task is None:
        bench.crew.call(Call("set_epoch", (3,)))
    else:
        bench.crew.submit(bench, 0, task, 0)
    before = [worker for worker, _ in bench.engine.tasks]
    assert not bench.crew.move(0, 1)
    assert sorted(worker for worker, _ in bench.engine.tasks) == before
    assert bench.counters.relieved == 0


def test_the_task_that_a_worker_is_at_is_the_one_it_was_given_first() -> None:
    bench = Bench()
    first = bench.crew.submit(bench, 3, Task(0, 7), 0)
    bench.crew.submit(bench, 1, Task(0, 8), 0)
    assert bench.crew.roster.oldest_of(0) is first
    assert bench.crew.roster.oldest_of(1) is None


# -- without a crew ---


def give(roster: Roster, worker: int, indices: object, owner: object = "epoch") -> Pending:
    return roster.begin(Pending(owner, 0, worker, Task(0, indices)), slot=-1, epoch=0)


def waiting(engine: HandEngine) -> list[tuple[int, object]]:
    return [(worker, task.indices) for worker, task in engine.tasks]


def answer(roster: Roster, engine: HandEngine, kind: ResultKind = ResultKind.DONE, *, bound: bool = False) -> None:
    worker, task = engine.tasks.pop(0)
    roster.answered(Result(kind, worker, task.id, bound=bound), 1.0)


def test_work_that_may_be_bound_stays_until_both_workers_have_shown_that_it_is_not() -> None:
    engine = HandEngine()
    roster = Roster(engine, binds=True)
    for worker in (0, 1):
        give(roster, worker, 0)
    give(roster, 0, 1)
    assert not roster.move(0, 1), "nobody has made anything"
    answer(roster, engine)
    assert not roster.move(0, 1), "what the other one does is not known"
    answer(roster, engine)
    assert roster.move(0, 1)
    assert waiting(engine) == [(1, 1)]


@pytest.mark.parametrize("kind", [ResultKind.DONE, ResultKind.FAILED])
def test_work_of_which_one_worker_said_that_it_is_bound_never_moves(kind: ResultKind) -> None:
    engine = HandEngine(3)
    roster = Roster(engine, binds=True)
    for worker in (0, 1, 2):
        give(roster, worker, 0)
    answer(roster, engine)
    answer(roster, engine)
    assert roster.may_move(0, 1)
    answer(roster, engine, kind, bound=True)
    assert not roster.may_move(0, 1)
    roster.renew(2)
    assert not roster.may_move(0, 1)


@pytest.mark.parametrize("renewed", [0, 1])
def test_a_worker_that_is_new_has_shown_nothing(renewed: int) -> None:
    engine = HandEngine()
    roster = Roster(engine, binds=True)
    for worker in (0, 1):
        give(roster, worker, 0)
        answer(roster, engine)
    assert roster.may_move(0, 1)
    roster.renew(renewed)
    assert not roster.may_move(0, 1)


def test_neither_a_call_nor_a_failure_shows_what_samples_do() -> None:
    engine = HandEngine()
    roster = Roster(engine, binds=True)
    for worker in (0, 1):
        give(roster, worker, Call("set_epoch", (1,)), CALLS)
        answer(roster, engine)
        give(roster, worker, 0)
        answer(roster, engine, ResultKind.FAILED)
    assert not roster.may_move(0, 1)


def test_a_number_is_never_used_again() -> None:
    engine = HandEngine()
    roster = Roster(engine)
    seen = [give(roster, 0, number).task.id for number in range(3)]
    with pytest.raises(TypeError, match="cannot be sent"):
        give(roster, 0, "unsendable")
    roster.take_back(0)
    roster.renew(0)
    seen += [give(roster, 1, number).task.id for number in range(3)]
    assert len(set(seen)) == 6
    assert [view.outstanding for view in roster.workers] == [0, 3]


def test_what_was_begun_and_what_was_waiting_are_told_apart() -> None:
    engine = HandEngine()
    roster = Roster(engine)
    tasks = [give(roster, 0, number) for number in range(3)]
    other = give(roster, 1, 3)
    engine.begin()
    assert roster.take_back(0) == (tasks[0], tasks[1:])
    assert roster.oldest_of(None) is other
    assert roster.answered(Result(ResultKind.DONE, 1, other.task.id), now_s=5.0) is other
    assert not roster.is_busy
    assert roster.workers[1].since_s == 5.0


def test_a_parked_worker_begins_nothing_but_calls() -> None:
    engine = HandEngine()
    roster = Roster(engine)
    tasks = [give(roster, 0, number) for number in range(2)]
    begun = engine.begin()
    roster.park(0)
    tasks.append(give(roster, 0, 2))
    call = give(roster, 0, Call("set_epoch", (3,)), CALLS)
    assert waiting(engine) == [(0, call.task.indices)]
    assert roster.idle_parked() == []
    roster.answered(Result(ResultKind.DONE, 0, begun.id), 0.0)
    assert roster.idle_parked() == [], "it has a call to hear"
    engine.begin()
    roster.answered(Result(ResultKind.DONE, 0, call.task.id), 0.0)
    assert roster.idle_parked() == [0]
    assert roster.take_back(0) == (None, tasks[1:])
    assert roster.parked == {}


def test_of_an_epoch_that_is_left_only_what_was_begun_stays_and_has_no_owner() -> None:
    engine = HandEngine()
    roster = Roster(engine)
    tasks = [give(roster, 0, number) for number in range(3)]
    call = give(roster, 0, Call("set_epoch", (3,)), CALLS)
    engine.begin()
    assert roster.withdraw("epoch") == tasks[1:]
    assert tasks[0].owner is None
    assert waiting(engine) == [(0, call.task.indices)]
    assert roster.workers[0].outstanding == 2
    assert roster.clear() == [tasks[0], call]
    assert not roster.is_busy
