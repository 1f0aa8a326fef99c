"""How every worker runs a task."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from feedline.abc import memory
from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import globals_kept
from feedline.randomness.scope import rng
from feedline.types import Call, DatasetKind, Draw, Position, ResultKind, Task, WorkerIdentity
from feedline.workers.runner import Runner


class RecordsBuffers:
    """A dataset that records the buffer of the current task."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.buffers.append(memory.on_this_thread.memory)
        if index == 9:
            raise ValueError("nine")
        if index == 8:
            raise StopIteration("eight")
        return index


class Streams:
    """Counts how often `iter` was called."""

    def __init__(self) -> None:
        self.started = 0

    def __iter__(self) -> Iterator[int]:
        self.started += 1
        return iter([self.started] * 3)


def make(dataset: Any, *, worker: bool = False, **options: Any) -> Runner:
    kind = DatasetKind.ITERABLE if hasattr(dataset, "__iter__") else DatasetKind.MAP
    spec = WorkerSpec(dataset, kind, list, NumpyFramework(), worker_count=int(worker), base_seed=3, **options)
    return Runner(spec, WorkerIdentity(0, 1, 3, dataset, threaded=True) if worker else None)


def test_stop_iteration_raised_by_a_sample_is_a_failure() -> None:
    result = make(RecordsBuffers()).attempt(Task(0, [8]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert type(result.payload) is StopIteration


def test_a_worker_begins_the_epochs_that_it_has_missed() -> None:
    dataset = Streams()
    runner = make(dataset)
    assert runner.attempt(Task(0, 2, epoch=3), 0, None).payload == [4, 4], "a new worker in the fourth epoch"
    assert runner.attempt(Task(0, 2, epoch=5), 0, None).payload == [6, 6]


def refuse(number: int) -> None:
    raise PermissionError(f"worker {number}")


def test_errors_of_the_init_function_are_kept_and_it_runs_only_in_workers() -> None:
    inline = make(RecordsBuffers(), init=refuse)
    assert inline.unready is None
    assert inline.attempt(Task(0, [1]), 0, None).kind is ResultKind.DONE
    worker = make(RecordsBuffers(), worker=True, init=refuse)
    assert type(worker.unready) is PermissionError, "engines that replace workers check this"
    for epoch in range(2):
        result = worker.attempt(Task(0, [1], epoch=epoch), 0, None)
        assert type(result.payload) is PermissionError, "other engines get the error from every task"
        assert result.payload.args == worker.unready.args


# -- notes that come with a batch ---


class Counting:
    """A map-style dataset that counts requests; the count is its state."""

    def __init__(self) -> None:
        self.asked = [0]

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.asked[0] += 1
        return index

    def add(self, number: int, *, twice: bool = False) -> None:
        self.asked[0] += number * (2 if twice else 1)

    def state_dict(self) -> dict[str, list[int]]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.asked = state["asked"]


def test_the_state_of_the_dataset_comes_with_the_batch_on_request() -> None:
    runner = make(Counting())
    assert runner.attempt(Task(0, [1, 2]), 0, None).notes is None
    notes = runner.attempt(Task(0, [3], snapshot=True), 0, None).notes
    assert notes is not None
    runner.attempt(Task(0, [4]), 0, None)
    assert notes.position == Position({"asked": [3]}), "a copy of the state at that time"


class Five:
    """A stream of five numbers, whose iterator has a state."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Five:
        return self

    def __next__(self) -> int:
        if self.place == 5:
            raise StopIteration
        self.place += 1
        return self.place - 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_the_state_of_a_stream_comes_with_the_batch_and_with_its_end() -> None:
    runner = make(Five())
    first = runner.attempt(Task(0, 3, snapshot=True), 0, None).notes
    assert first is not None
    assert first.position == Position(None, {"place": 3}, place=3, read=3, is_one=True)
    runner.attempt(Task(0, 3), 0, None)
    ended = runner.attempt(Task(0, 3, snapshot=True), 0, None)
    assert ended.kind is ResultKind.ENDED
    assert ended.notes is not None
    assert ended.notes.position == Position(None, {"place": 5}, place=5, read=5, ended=True, is_one=True)


def test_a_call_task_calls_a_method_of_the_dataset() -> None:
    dataset = Counting()
    runner = make(dataset)
    runner.attempt(Task(0, [1]), 0, None)
    result = runner.attempt(Task(1, Call("add", (5,), {"twice": True})), 0, None)
    assert (result.kind, result.task_id) == (ResultKind.DONE, 1)
    assert dataset.asked == [11]
    failed = runner.attempt(Task(2, Call("no_such_method")), 0, None)
    assert type(failed.payload) is AttributeError


# -- random numbers ---


class Draws:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[float, float]:
        return rng().random(), random.random()


def drawn(*, threaded: bool | None, seeded: bool) -> list[tuple[float, float]]:
    """Return what a worker draws; `threaded=None` means no worker at all."""
    dataset = Draws()
    spec = WorkerSpec(dataset, DatasetKind.MAP, list, NumpyFramework(), worker_count=1, base_seed=3, seeded=seeded)
    worker = None if threaded is None else WorkerIdentity(0, 1, 3, dataset, threaded=threaded)
    runner = Runner(spec, worker)
    return [tuple(sample) for sample in runner.run(Task(0, [1, 2, 3], draw=Draw(7, 4, 2)), None)]


def test_worker_threads_do_not_seed_the_global_generators() -> None:
    with globals_kept():
        random.seed(1)
        first = [second for _, second in drawn(threaded=True, seeded=True)]
        random.seed(2)
        assert [second for _, second in drawn(threaded=True, seeded=True)] != first
