"""What every worker does with a task."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from feedline.abc import memory
from feedline.abc.worker_spec import WorkerSpec
from feedline.faults import Retry
from feedline.faults.policy import policy_of
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import globals_kept
from feedline.randomness.scope import rng
from feedline.types import (
    Call,
    DatasetKind,
    Draw,
    Result,
    ResultKind,
    Resume,
    Share,
    Span,
    StreamSharding,
    Task,
    WorkerIdentity,
)
from feedline.workers.runner import Runner


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
    has_space = False

    def allocate(self, size: int) -> tuple[Any, int] | None:
        return None


def test_the_room_is_announced_for_the_length_of_the_task() -> None:
    dataset, buffer = Looking(), Room()
    runner = make(dataset)
    assert runner.run(Task(0, [1, 2]), buffer) == [1, 2]
    assert dataset.rooms == [buffer, buffer]
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
    inline = make(Looking(), init=refuse)
    assert inline.unready is None
    assert inline.attempt(Task(0, [1]), 0, None).kind is ResultKind.DONE
    worker = make(Looking(), worker=True, init=refuse)
    assert type(worker.unready) is PermissionError, "an engine that starts another one asks this"
    for epoch in range(2):
        result = worker.attempt(Task(0, [1], epoch=epoch), 0, None)
        assert type(result.payload) is PermissionError, "an engine that does not has it raised by every task"
        assert result.payload.args == worker.unready.args


def test_a_stream_that_does_not_begin_is_no_reason_to_start_another_worker() -> None:
    runner = make(FailsToBegin(), worker=True)
    runner.attempt(Task(0, 2), 0, None)
    assert runner.unready is None


def test_the_birth_of_a_worker_is_told_before_the_code_of_the_user_runs() -> None:
    told: list[str] = []
    dataset = Looking()
    spec = WorkerSpec(
        dataset,
        DatasetKind.MAP,
        list,
        NumpyFramework(),
        worker_count=1,
        base_seed=3,
        init=lambda number: told.append(f"init {number}"),
    )
    Runner(spec, WorkerIdentity(0, 1, 3, dataset, threaded=True), is_born=lambda: told.append("born"))
    assert told == ["born", "init 0"]


# -- samples that fail ---


class Torn:
    """Samples that are multiples of `every` cannot be had; notes which were asked for."""

    def __init__(self, every: int = 4) -> None:
        self.every = every
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index % self.every == 0:
            raise ValueError(f"sample {index} is torn")
        return index


def guarded(dataset: Any, on_error: Any = "skip", *, worker: bool = False) -> Runner:
    return make(dataset, worker=worker, on_error=policy_of(on_error))


def faults_of(result: Result) -> list[tuple[Any, str]]:
    return [] if result.notes is None else [(fault.index, fault.action) for fault in result.notes.faults]


def test_without_a_policy_a_failure_is_raised_and_told_of() -> None:
    result = make(Torn(), worker=True).attempt(Task(0, [1, 4, 5]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert faults_of(result) == [(4, "raise")]
    assert any("sample 4 (stage: fetch, worker 0)" in note for note in result.payload.__notes__)


def test_a_collate_function_that_fails_is_told_of_with_the_samples() -> None:
    def broken(samples: Any) -> Any:
        raise TypeError("no two are alike")

    spec = WorkerSpec(Torn(), DatasetKind.MAP, broken, NumpyFramework(), worker_count=0, base_seed=3)
    result = Runner(spec, None).attempt(Task(0, [1, 2]), 0, None)
    assert faults_of(result) == [([1, 2], "raise")]
    assert any("1, 2" in note and "collate" in note for note in result.payload.__notes__)


def test_what_goes_wrong_in_a_call_is_no_fault_of_a_sample() -> None:
    result = make(Torn()).attempt(Task(0, Call("no_such_method")), 0, None)
    assert (result.kind, result.notes) == (ResultKind.FAILED, None)


def test_a_batch_that_lacks_samples_is_made_of_the_others() -> None:
    result = guarded(Torn()).attempt(Task(3, [3, 4, 5, 8]), 0, None)
    assert (result.kind, result.payload) == (ResultKind.DONE, [3, 5])
    assert faults_of(result) == [(4, "skip"), (8, "skip")]


def test_a_batch_of_which_nothing_is_left_is_empty() -> None:
    result = guarded(Torn()).attempt(Task(3, [4, 8]), 0, None)
    assert (result.kind, result.task_id, result.payload) == (ResultKind.EMPTY, 3, None)
    assert faults_of(result) == [(4, "skip"), (8, "skip")]


def test_places_that_are_known_to_fail_are_not_asked_for() -> None:
    dataset = Torn()
    result = guarded(dataset).attempt(Task(3, [3, 4, 5], skip=(1,)), 0, None)
    assert (result.kind, result.payload) == (ResultKind.DONE, [3, 5])
    result = guarded(dataset).attempt(Task(4, [4, 8], skip=(0, 1)), 0, None)
    assert (result.kind, faults_of(result)) == (ResultKind.EMPTY, [])
    assert dataset.asked == [3, 5]


def test_waiting_for_another_attempt_is_left_to_the_engine() -> None:
    waits: list[float] = []
    dataset = Torn()
    spec = WorkerSpec(
        dataset,
        DatasetKind.MAP,
        list,
        NumpyFramework(),
        worker_count=0,
        base_seed=3,
        on_error=policy_of(Retry(attempts=2, wait_s=20.0)),
    )
    result = Runner(spec, None, waits.append).attempt(Task(0, [4]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert len(waits) == 2
    assert all(10 <= wait <= 45 for wait in waits), "seconds that nobody has waited for here"


# -- what a worker has to say besides the batch ---


class Counting:
    """A map-style dataset that counts how often it was asked, and can save that."""

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


def test_the_state_of_the_dataset_comes_with_the_batch_if_it_is_wanted() -> None:
    runner = make(Counting())
    assert runner.attempt(Task(0, [1, 2]), 0, None).notes is None
    notes = runner.attempt(Task(0, [3], snapshot=True), 0, None).notes
    assert notes is not None
    runner.attempt(Task(0, [4]), 0, None)
    assert notes.dataset == {"asked": [3]}, "as it was then, whatever the dataset does since"


def test_a_dataset_without_a_state_says_nothing() -> None:
    assert make(Looking()).attempt(Task(0, [1], snapshot=True), 0, None).notes is None


def test_a_worker_goes_on_with_the_state_it_is_given() -> None:
    runner = make(Counting(), worker=True)
    notes = runner.attempt(Task(0, [1], resume=Resume({"asked": [40]}), snapshot=True), 0, None).notes
    assert notes is not None
    assert notes.dataset == {"asked": [41]}


def test_a_state_that_the_dataset_refuses_is_raised_by_the_first_task() -> None:
    result = make(Counting(), worker=True).attempt(Task(0, [1], resume=Resume({"wrong": 1})), 0, None)
    assert result.kind is ResultKind.FAILED
    assert type(result.payload) is KeyError


class OwnIterator:
    """An iterable dataset that is its own iterator, with a state."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> OwnIterator:
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
    runner = make(OwnIterator())
    first = runner.attempt(Task(0, 3, snapshot=True), 0, None).notes
    assert first is not None
    assert (first.iterator, first.dataset, first.is_one, first.place) == ({"place": 3}, None, True, 3)
    runner.attempt(Task(0, 3), 0, None)
    ended = runner.attempt(Task(0, 3, snapshot=True), 0, None)
    assert ended.kind is ResultKind.ENDED
    assert ended.notes is not None
    assert ended.notes.iterator == {"place": 5}


def test_near_the_end_of_a_stream_that_is_shared_out_it_is_said_how_far_that_is() -> None:
    sharding = StreamSharding(2, Share(0, 2, "exact"))
    runner = make(Streams(), sharding=sharding)  # three samples
    notes = runner.attempt(Task(0, Span(0), snapshot=True), 0, None).notes
    assert notes is not None
    assert notes.consumed == 3


def test_a_method_of_the_dataset_is_called_in_its_turn() -> None:
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
    """Return what a worker draws; None: no worker at all."""
    dataset = Draws()
    spec = WorkerSpec(dataset, DatasetKind.MAP, list, NumpyFramework(), worker_count=1, base_seed=3, seeded=seeded)
    worker = None if threaded is None else WorkerIdentity(0, 1, 3, dataset, threaded=threaded)
    runner = Runner(spec, worker)
    return [tuple(sample) for sample in runner.run(Task(0, [1, 2, 3], draw=Draw(7, 4, 2)), None)]


def test_samples_draw_the_same_wherever_they_are_made() -> None:
    with globals_kept():
        own = {kind: [first for first, _ in drawn(threaded=kind, seeded=False)] for kind in (None, True, False)}
        assert own[None] == own[True] == own[False]
        assert len(set(own[None])) == 3
        assert drawn(threaded=None, seeded=True) == drawn(threaded=False, seeded=True)


def test_threads_leave_the_generators_of_the_process_alone() -> None:
    with globals_kept():
        random.seed(1)
        first = [second for _, second in drawn(threaded=True, seeded=True)]
        random.seed(2)
        assert [second for _, second in drawn(threaded=True, seeded=True)] != first


def test_without_workers_the_generators_are_given_back() -> None:
    with globals_kept():
        random.seed(1)
        expected = random.random()
        random.seed(1)
        drawn(threaded=None, seeded=True)
        assert random.random() == expected


def test_the_scope_is_left_after_a_failure() -> None:
    class Broken(Draws):
        def __getitem__(self, index: int) -> tuple[float, float]:
            self.seen = rng()
            raise ValueError("broken")

    dataset = Broken()
    make(dataset).attempt(Task(0, [1]), 0, None)
    assert rng() is not dataset.seen
