"""Batches that a crew makes."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from feedline.errors import BadState, WorkerDied
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader.batches import CrewBatches, begin_epoch
from feedline.loader.bookmark import Bookmark
from feedline.core.counters import Counters
from feedline.loader.crew import Crew
from feedline.loader.inline_batches import InlineBatches
from feedline.loader.map_epoch import MapEpoch
from feedline.loader.order import Entry
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import StreamEpoch
from feedline.plan.spans import SpanPlan
from feedline.state import Snapshot
from feedline.types import DatasetKind, Key, Resume, Share, StreamSplit, WorkerSpec
from tests.loader.beginnings import Numbers, Remembering, Stream, bookmark_of, spec_of
from tests.loader.stepping import Clock, SteppingEngine


def make_crew(**engine_options: Any) -> tuple[Crew, SteppingEngine]:
    engine = SteppingEngine(2, Clock(), lambda _: 0.0)
    for name, value in engine_options.items():
        setattr(engine, name, value)
    return Crew(engine, None, NumpyFramework(), Counters()), engine


def begin(crew: Crew, count: int = 4) -> Any:
    bookmark = bookmark_of([[number] for number in range(count)])
    return begin_epoch(crew, Settings(worker_count=2, depth=2), spec_of(Numbers()), bookmark, None)


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_end_with_the_epoch_unless_they_are_persistent(persistent: bool) -> None:
    crew, engine = make_crew()
    batches = CrewBatches(crew, begin, persistent=persistent)
    assert list(batches) == [[0], [1], [2], [3]]
    assert engine.closed is not persistent
    assert batches.closed is not persistent
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()
    batches.close()
    assert engine.closed


def test_another_epoch_with_the_same_workers() -> None:
    crew, engine = make_crew()
    batches = CrewBatches(crew, begin, persistent=True)
    assert next(batches) == [0]
    batches.restart(lambda crew: begin(crew, 3))
    assert list(batches) == [[0], [1], [2]]
    assert crew.epoch == 1
    assert {task.epoch for _, task in engine.submitted} == {0, 1}
    batches.close()


def test_dropping_the_iterator_ends_the_workers() -> None:
    crew, engine = make_crew()
    batches = CrewBatches(crew, begin, persistent=True)
    next(batches)
    gc.disable()
    try:
        del batches
        assert engine.closed, "at once, not when the garbage collector comes by"
    finally:
        gc.enable()


def test_an_epoch_that_cannot_begin_ends_the_workers() -> None:
    crew, engine = make_crew()

    def fail(_: Crew) -> Any:
        raise LookupError("no plan")

    with pytest.raises(LookupError):
        CrewBatches(crew, fail, persistent=True)
    assert engine.closed


def test_a_death_is_told_again_to_who_asks_again() -> None:
    crew, engine = make_crew()
    engine.deaths.append((0.0, 0, WorkerDied("gone")))
    engine.cost = lambda _: 100.0
    batches = CrewBatches(crew, begin, persistent=True)
    for _ in range(3):
        with pytest.raises(WorkerDied):
            next(batches)
    assert batches.closed


@pytest.mark.parametrize(("kind", "epoch"), [(DatasetKind.MAP, MapEpoch), (DatasetKind.ITERABLE, StreamEpoch)])
def test_the_kind_of_dataset_decides_the_kind_of_epoch(kind: DatasetKind, epoch: type) -> None:
    crew, _ = make_crew()
    made = begin_epoch(crew, Settings(worker_count=2), spec_of(Numbers(), kind), bookmark_of([3] * 9), None)
    assert type(made) is epoch
    crew.close()


# -- resuming ---


def test_states_of_several_workers_need_as_many() -> None:
    streams = ({"dataset": {"asked": 1}}, {"dataset": {"asked": 2}})
    with pytest.raises(BadState, match=r"saved with 2 workers.*there are none now"):
        InlineBatches(spec_of(Remembering()), bookmark_of([[0]]), Snapshot(0, streams=streams), None, Counters(), None)
    crew, _ = make_crew()
    for dataset, kind, message in [
        (Remembering(), DatasetKind.MAP, "saved with 3 of them, and there are 2 now"),
        (Stream(), DatasetKind.ITERABLE, "saved with 3 streams .* there are 2 workers now"),
    ]:
        with pytest.raises(BadState, match=message):
            resume(crew, spec_of(dataset, kind), Snapshot(0, streams=(*streams, {"dataset": {"asked": 3}})))
    crew.close()


def resume(crew: Crew, spec: WorkerSpec, snapshot: Snapshot, bookmark: Bookmark | None = None) -> Any:
    return begin_epoch(crew, Settings(worker_count=2), spec, bookmark or bookmark_of([[0]] * 9), snapshot)


def test_workers_go_on_from_their_own_states_and_nothing_is_forgotten_meanwhile() -> None:
    crew, engine = make_crew()
    streams = tuple({"dataset": {"asked": count}, "iterator": None, "place": 0} for count in (1, 2))
    bookmark = bookmark_of([[0]] * 9, workers=2)
    epoch = resume(crew, spec_of(Remembering()), Snapshot(0, streams=streams, turn=1), bookmark)
    told = {worker: task.resume for worker, task in engine.submitted if task.resume is not None}
    assert told == {0: Resume({"asked": 1}), 1: Resume({"asked": 2})}
    assert engine.submitted[0][0] == 1, "whose turn it was"
    next(epoch)
    assert bookmark.snapshot().streams == streams, "until a worker says something newer"
    crew.close()


def test_every_worker_goes_on_from_the_one_state_of_a_stream_that_is_shared_out() -> None:
    crew, engine = make_crew()
    spec = replace(spec_of(Stream(), DatasetKind.ITERABLE), split=StreamSplit(2, Share()))
    entry = Entry(Key(0, 0), draw_key=0, order={"consumed": 6})
    plan = SpanPlan(StreamSplit(2, Share()), consumed=6)
    bookmark = Bookmark(entry, plan, "stream samples", dict, draw_seed=0, worker_count=2, batch_size=2)
    resume(crew, spec, Snapshot(0, streams=({"iterator": {"place": 5}, "place": 5},)), bookmark)
    told = {worker: task.resume for worker, task in engine.submitted if task.resume is not None}
    assert told == {worker: Resume(None, {"place": 5}, 5, least=4) for worker in range(2)}
    assert all(task.snapshot for _, task in engine.submitted)
    crew.close()


def test_streams_of_ones_own_go_on_and_nothing_is_forgotten_meanwhile() -> None:
    crew, engine = make_crew()
    streams = (
        {"batches": 5, "noted_at": 4, "ended": False, "read": None, "dataset": None, "iterator": {"n": 4}, "place": 4},
        {"batches": 3, "noted_at": 0, "ended": True, "read": None},
    )
    bookmark = bookmark_of([1] * 9, workers=2)
    bookmark.facts = lambda: {"unit": "stream batches"}
    epoch = resume(crew, spec_of(Stream(), DatasetKind.ITERABLE), Snapshot(0, streams=streams), bookmark)
    assert type(epoch) is StreamEpoch
    assert {worker for worker, _ in engine.submitted} == {0}, "the other has nothing left"
    assert engine.submitted[0][1].resume == Resume(None, {"n": 4}, 4, 1, least=5)
    assert bookmark.snapshot().streams == streams
    crew.close()
