"""What every worker does with a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from feedline import memory
from feedline.engines.runner import Runner
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind, ResultKind, Task, WorkerIdentity, WorkerSpec


class Looking:
    """A dataset that notes the memory of the task it is asked in."""

    def __init__(self) -> None:
        self.rooms: list[Any] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.rooms.append(memory.current())
        if index == 9:
            raise ValueError("nine")
        if index == 8:
            raise StopIteration("eight")
        return index


class Streams:
    """Counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter([self.begun] * 3)


class FailsToBegin:
    def __iter__(self) -> Iterator[int]:
        raise OSError("no such shard")


def make(dataset: Any, *, worker: bool = False, **options: Any) -> Runner:
    kind = DatasetKind.ITERABLE if hasattr(dataset, "__iter__") else DatasetKind.MAP
    spec = WorkerSpec(dataset, kind, list, NumpyFramework(), worker_count=int(worker), base_seed=3, **options)
    return Runner(spec, WorkerIdentity(0, 1, 3, dataset, threaded=True) if worker else None)


class Room:
    crosses = False

    def allocate(self, size: int) -> tuple[Any, int] | None:
        return None


def test_the_room_is_announced_for_the_length_of_the_task() -> None:
    dataset, room = Looking(), Room()
    runner = make(dataset)
    assert runner.run(Task(0, [1, 2]), room) == [1, 2]
    assert dataset.rooms == [room, room]
    assert memory.current() is None


def test_the_room_is_withdrawn_after_a_failure() -> None:
    runner = make(Looking())
    with pytest.raises(ValueError, match="nine"):
        runner.run(Task(0, [9]), Room())
    assert memory.current() is None


@pytest.mark.parametrize(("index", "kind", "payload"), [(1, ResultKind.DONE, list), (9, ResultKind.FAILED, ValueError)])
def test_an_attempt_is_reported(index: int, kind: ResultKind, payload: type) -> None:
    result = make(Looking()).attempt(Task(7, [index]), 4, None)
    assert (result.kind, result.task_id, result.worker) == (kind, 7, 4)
    assert type(result.payload) is payload
    assert (result.busy_ns > 0) == (kind is ResultKind.DONE)


def test_stop_iteration_of_a_sample_is_no_end_of_a_stream() -> None:
    result = make(Looking()).attempt(Task(0, [8]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert type(result.payload) is StopIteration


def test_a_stream_begins_again_with_every_epoch_and_only_then() -> None:
    dataset = Streams()
    runner = make(dataset)
    assert [runner.attempt(Task(0, 2), 0, None).payload for _ in range(2)] == [[1, 1], [1]]
    assert runner.attempt(Task(0, 2), 0, None).kind is ResultKind.ENDED
    assert runner.attempt(Task(0, 2, epoch=1), 0, None).payload == [2, 2]
    assert runner.attempt(Task(0, 2, epoch=5), 0, None).payload == [3, 3]
    assert dataset.begun == 3


@pytest.mark.parametrize("worker", [False, True])
def test_trouble_while_setting_up_is_kept_for_the_first_task(worker: bool) -> None:
    runner = make(FailsToBegin(), worker=worker)
    for _ in range(2):
        result = runner.attempt(Task(0, 2), 0, None)
        assert result.kind is ResultKind.FAILED
        assert "no such shard" in str(result.payload)


def refuse(number: int) -> None:
    raise PermissionError(f"worker {number}")


def test_an_init_function_that_raises_is_kept_and_only_called_in_workers() -> None:
    assert make(Looking(), init=refuse).attempt(Task(0, [1]), 0, None).kind is ResultKind.DONE
    result = make(Looking(), worker=True, init=refuse).attempt(Task(0, [1]), 0, None)
    assert type(result.payload) is PermissionError
