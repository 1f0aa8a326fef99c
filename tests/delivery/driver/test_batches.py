"""Batches that workers make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from feedline import DataLoader
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.config import Config
from feedline.delivery.driver.batches import WorkerBatches, new_epoch
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import BadState
from feedline.types import DatasetKind, EngineName, Position
from tests.delivery.stepping import Clock, SteppingEngine, driver_of
from tests.loader.beginnings import Numbers, Remembering, Stream, bookmark_of, resources_with, spec_of


def start(**engine_options: Any) -> tuple[Driver, SteppingEngine]:
    engine = SteppingEngine(2, Clock(), lambda _: 0.0)
    for name, value in engine_options.items():
        setattr(engine, name, value)
    return driver_of(engine), engine


def begin(driver: Driver, count: int = 4) -> None:
    checkpoint = bookmark_of([[number] for number in range(count)])
    driver.begin_epoch(new_epoch(driver.machine, Config(worker_count=2, depth=2), spec_of(Numbers()), checkpoint, None))


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_end_with_the_epoch_unless_they_are_persistent(persistent: bool) -> None:
    driver, engine = start()
    batches = WorkerBatches(driver, begin, persistent=persistent)
    assert list(batches) == [[0], [1], [2], [3]]
    assert engine.closed is not persistent
    assert batches.closed is not persistent
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()
    batches.close()
    assert engine.closed


def test_an_epoch_that_fails_to_start_ends_the_workers() -> None:
    driver, engine = start()

    def fail(_: Driver) -> None:
        raise LookupError("no plan")

    with pytest.raises(LookupError):
        WorkerBatches(driver, fail, persistent=True)
    assert engine.closed


# -- resuming ---


def test_states_of_several_workers_need_as_many_workers() -> None:
    streams = (Position({"asked": 1}), Position({"asked": 2}))
    with pytest.raises(BadState, match=r"saved with 2 workers.*there are none now"):
        InlineBatches(spec_of(Remembering()), bookmark_of([[0]]), Snapshot(0, streams=streams), resources_with(), None)
    driver, _ = start()
    for dataset, kind, message in [
        (Remembering(), DatasetKind.MAP, r"saved with 3 workers.*there are 2 now"),
        (Stream(), DatasetKind.ITERABLE, r"saved with 3 workers.*there are 2 now.*shard=True"),
    ]:
        with pytest.raises(BadState, match=message):
            resume(driver, spec_of(dataset, kind), Snapshot(0, streams=(*streams, Position({"asked": 3}))))
    driver.close()


def resume(driver: Driver, spec: WorkerSpec, snapshot: Snapshot, checkpoint: Checkpoint | None = None) -> None:
    driver.begin_epoch(
        new_epoch(driver.machine, Config(worker_count=2), spec, checkpoint or bookmark_of([[0]] * 9), snapshot)
    )


def test_workers_resume_from_their_own_states_which_stay_in_the_checkpoint() -> None:
    driver, engine = start()
    streams = Position({"asked": 1}), Position({"asked": 2})
    checkpoint = bookmark_of([[0]] * 9, workers=2)
    resume(driver, spec_of(Remembering()), Snapshot(0, streams=streams, turn=1), checkpoint)
    resumed = {worker: task.resume for worker, task in engine.submitted if task.resume is not None}
    assert resumed == dict(enumerate(streams))
    assert engine.submitted[0][0] == 1, "the worker whose turn it was"
    driver.next()
    assert checkpoint.snapshot().streams == streams, "until a worker sends a newer state"
    driver.close()


# -- epochs that fail to start ---


class Unreliable(IterableDataset[int]):
    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        if self.epochs == 2:
            raise ConnectionError("store away")
        return iter(range(100 * self.epochs, 100 * self.epochs + 6))


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_an_epoch_that_fails_to_start_delivers_no_batches_of_the_previous_one(engine: EngineName) -> None:
    loader = DataLoader(Unreliable(), 1, num_workers=1, persistent_workers=True, engine=engine)
    assert next(iter(loader)).item() == 100
    iterator = iter(loader)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="store away"):
            next(iterator)
    assert [batch.item() for batch in loader] == [300, 301, 302, 303, 304, 305]
    loader.close()


def test_restart_runs_another_epoch_with_the_same_workers() -> None:
    driver, engine = start()
    batches = WorkerBatches(driver, begin, persistent=True)
    assert next(batches) == [0]
    batches.restart(lambda driver: begin(driver, 3))
    assert list(batches) == [[0], [1], [2]]
    assert driver.machine.flights.epochs == 1
    assert {task.epoch for _, task in engine.submitted} == {0, 1}
    batches.close()
