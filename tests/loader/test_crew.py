"""Workers at work: tasks, answers, and the slots behind them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from feedline.abc import Engine
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader.crew import Counters, Crew
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec, SlotWriter
from feedline.types import Call, Parcel, Result, ResultKind, Resume, Task, WorkerSpec

CODEC = Codec(NumpyFramework())


class HandEngine(Engine):
    """Answers when the test says so, with batches written into the task's slot."""

    def __init__(self, worker_count: int = 2) -> None:
        self.worker_count = worker_count
        self.tasks: list[tuple[int, Task]] = []
        self.answers: list[Result] = []
        self.arena: Arena | None = None
        self.closed = 0

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        if task.indices == "unsendable":
            raise TypeError("cannot be sent")
        self.tasks.append((worker, task))

    def revoke(self, worker: int) -> int | None:
        for place, (who, task) in enumerate(self.tasks):
            if who == worker:
                del self.tasks[place]
                return task.id
        return None

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        self.closed += 1

    def finish(self, kind: ResultKind = ResultKind.DONE, size: int = 1000, *, overflow: bool = False) -> None:
        """Finish the oldest task."""
        worker, task = self.tasks.pop(0)
        payload: Any = None
        if kind is ResultKind.DONE:
            payload = self._write(task, size, overflow=overflow)
        elif kind is ResultKind.FAILED:
            payload = ValueError("torn")
        self.answers.append(Result(kind, worker, task.id, payload, 1_000_000))

    def _write(self, task: Task, size: int, *, overflow: bool) -> Parcel:
        assert self.arena is not None
        memory = np.zeros(1 << 16, np.uint8) if overflow or task.slot < 0 else self.arena.view(task.slot, 1 << 16)
        writer = SlotWriter(memory, memory.__array_interface__["data"][0])
        header = CODEC.encode([np.full(size, task.indices, np.uint8)], writer)
        return Parcel(header, task.slot, writer.used, memory if overflow or task.slot < 0 else None)


class Bench:
    def __init__(self, slots: int = 4, budget: int = 1 << 30) -> None:
        self.engine = HandEngine()
        self.arena = self.engine.arena = Arena(slots, shared=True, budget=budget)
        self.counters = Counters()
        self.crew = Crew(self.engine, self.arena, NumpyFramework(), self.counters)

    def batch(self, number: int, **how: Any) -> Any:
        """Have a batch made and delivered."""
        self.crew.submit(self, number, Task(0, number), 0)
        self.engine.finish(**how)
        ((pending, result),) = self.crew.collect(0.0)
        assert pending is not None
        assert pending.ordinal == number
        return self.crew.deliver(result)[0]

    def free_slots(self) -> int:
        slots = []
        while (slot := self.arena.acquire()) >= 0:
            slots.append(slot)
        assert len(slots) == len(set(slots)), "a slot was given back twice"
        for slot in slots:
            self.arena.release(slot)
        return len(slots)


def test_a_batch_is_a_view_and_its_slot_comes_back_with_it() -> None:
    bench = Bench()
    batch = bench.batch(7)
    assert batch.tolist() == [7] * 1000
    assert np.shares_memory(batch, bench.arena.view(0))
    assert bench.free_slots() == 3
    del batch
    assert bench.free_slots() == 4


def test_batches_that_are_kept_are_copied_when_slots_run_short_and_never_overwritten() -> None:
    bench = Bench(slots=3)
    kept = [bench.batch(number) for number in range(20)]
    assert [batch.tolist() for batch in kept] == [[number] * 1000 for number in range(20)]
    assert bench.counters.copied_out == 18, "one slot is always kept for the next task"
    assert bench.counters.overflowed == 0
    del kept
    assert bench.free_slots() == 3


def test_a_batch_that_came_in_memory_of_its_own_gives_its_slot_back_at_once() -> None:
    bench = Bench()
    batch = bench.batch(5, overflow=True)
    assert batch.tolist() == [5] * 1000
    assert bench.counters.overflowed == 1
    assert bench.free_slots() == 4


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


def test_a_batch_nobody_wants_is_given_back_once() -> None:
    bench = Bench()
    bench.crew.submit(bench, 0, Task(0, 0), 0)
    bench.engine.finish()
    ((_, result),) = bench.crew.collect(0.0)
    bench.crew.discard(result)
    bench.crew.discard(result)
    bench.crew.close()
    assert bench.free_slots() == 4


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


def test_calls_outlive_the_epoch_in_which_they_were_made() -> None:
    bench = Bench()
    bench.crew.submit("epoch", 0, Task(0, 7), 0)
    bench.crew.call(Call("set_epoch", (3,)))
    bench.crew.submit("epoch", 1, Task(0, 8), 0)
    bench.crew.abandon("epoch")
    assert calls_of(bench) == [(0, "set_epoch"), (1, "set_epoch")]
    assert len(bench.engine.tasks) == 2
    assert bench.free_slots() == 4


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
