"""What `iter(loader)` returns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from feedline import memory
from feedline.errors import WorkerDied
from feedline.frameworks.numpy import NumpyFramework
from feedline.loader.batches import CrewBatches, InlineBatches, begin_epoch
from feedline.loader.bookmark import Bookmark
from feedline.loader.crew import Counters, Crew
from feedline.loader.map_epoch import MapEpoch
from feedline.loader.order import Entry
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import StreamEpoch
from feedline.plan.foreign import ForeignPlan
from feedline.transport.arena import Arena
from feedline.types import DatasetKind, Key, WorkerSpec
from tests.loader.stepping import Clock, SteppingEngine


class Numbers:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise ValueError("four")
        return index


def spec_of(dataset: Any, kind: DatasetKind = DatasetKind.MAP) -> WorkerSpec:
    return WorkerSpec(dataset, kind, list, NumpyFramework(), worker_count=0, base_seed=0)


def bookmark_of(plan: list[Any]) -> Bookmark:
    entry = Entry(Key(0, 0), draw_key=0)
    return Bookmark(entry, ForeignPlan(iter(plan)), {}, draw_seed=0, worker_count=0, batch_size=1)


def inline(plan: list[Any], arena: Arena | None = None, prepare: Any = None) -> InlineBatches:
    return InlineBatches(spec_of(Numbers()), bookmark_of(plan), None, arena, Counters(), prepare)


def test_inline_batches_are_made_when_they_are_asked_for() -> None:
    batches = inline([[0, 1], [2]])
    assert [next(batches), next(batches)] == [[0, 1], [2]]
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()


def test_inline_iteration_goes_on_after_a_failure() -> None:
    batches = inline([[0], [4], [2]], Arena(2, shared=False, budget=1 << 20))
    assert next(batches) == [0]
    with pytest.raises(ValueError, match="four"):
        next(batches)
    assert memory.current() is None
    assert next(batches) == [2]


def test_trouble_while_setting_up_is_raised_at_once() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such shard")

    with pytest.raises(OSError, match="no such shard"):
        InlineBatches(spec_of(Broken(), DatasetKind.ITERABLE), bookmark_of([1]), None, None, Counters(), None)


def test_inline_batches_get_a_last_touch() -> None:
    assert next(inline([[0]], prepare=tuple)) == (0,)


# -- with workers ---


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
