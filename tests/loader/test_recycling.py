"""Workers that have grown too large are replaced, between two batches."""

from __future__ import annotations

import pytest

from feedline.types import Call, Result, ResultKind, Task
from tests.loader.hand import Bench


def let_grow(bench: Bench, worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it found that a worker has too much memory, with the next answer."""
    found = [worker]
    monkeypatch.setattr(bench.crew.recycling.watch, "look", lambda _: iter([found.pop()] if found else []))
    bench.crew.recycling.watch.next_s = 0.0


def test_a_worker_that_has_grown_is_replaced_when_it_has_done_what_it_had_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    for number in range(3):
        bench.crew.submit(bench, number, Task(0, number), 0)
    bench.crew.submit(bench, 3, Task(0, 3), 1)
    begun = bench.engine.begin()
    bench.engine.tasks.insert(0, bench.engine.tasks.pop())  # the other worker answers first
    let_grow(bench, 0, monkeypatch)
    bench.engine.finish()
    ((_, result),) = bench.crew.collect(0.0)
    bench.crew.slots.discard(result)
    assert bench.given() == [], "what it has not begun is taken from it"
    bench.crew.submit(bench, 4, Task(0, 4), 0)
    assert bench.crew.collect(0.0) == []
    assert (bench.given(), bench.engine.replaced) == ([], []), "it is still at something"
    bench.engine.tasks = [(0, begun)]
    bench.engine.finish()
    ((_, result),) = bench.crew.collect(0.0)
    bench.crew.slots.discard(result)
    assert bench.crew.collect(0.0) == []
    assert bench.engine.replaced == [0]
    assert bench.given() == [(0, 1), (0, 2), (0, 4)], "in the order in which it was to be done"
    assert (bench.counters.recycled, bench.counters.restarts) == (1, 0)
    assert bench.crew.workers[0].outstanding == 3


def test_leaving_an_epoch_takes_back_what_a_worker_that_is_to_go_was_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(2):
        bench.crew.submit(bench, number, Task(0, number), 0)
    bench.engine.begin()
    bench.crew.submit(bench, 2, Task(0, 2), 1)
    bench.engine.tasks.reverse()
    let_grow(bench, 0, monkeypatch)
    bench.engine.finish()
    ((_, result),) = bench.crew.collect(0.0)
    bench.crew.slots.discard(result)
    bench.crew.abandon(bench)
    assert bench.free_slots() == 3, "all but that of the task which has begun"
    assert bench.crew.workers[0].outstanding == 1


def test_a_worker_that_is_found_again_keeps_the_calls_it_is_to_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them it would count as busy forever: it would not be replaced, and its tasks would not be done."""
    bench = Bench()
    for number in range(2):
        bench.crew.submit(bench, number, Task(0, number), 0)
    begun = bench.engine.begin()
    let_grow(bench, 0, monkeypatch)
    bench.crew.recycling.look(0.0)
    bench.crew.call(Call("set_epoch", (3,)))
    let_grow(bench, 0, monkeypatch)
    bench.crew.recycling.look(1.0)
    (call,) = [task for worker, task in bench.engine.tasks if worker == 0]
    bench.engine.tasks = [(0, begun)]
    bench.engine.finish()
    bench.engine.answers.append(Result(ResultKind.DONE, 0, call.id))
    ((_, result),) = bench.crew.collect(0.0)
    bench.crew.slots.discard(result)
    bench.crew.collect(0.0)
    assert bench.engine.replaced == [0]
    assert bench.given() == [(0, 1)]
