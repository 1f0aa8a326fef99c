"""How every worker runs a task."""

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


class RecordsBuffers:
    """A dataset that records the buffer of the current task."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.buffers.append(memory.current())
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


class FailsToStart:
    def __iter__(self) -> Iterator[int]:
        raise OSError("no such shard")


def make(dataset: Any, *, worker: bool = False, **options: Any) -> Runner:
    kind = DatasetKind.ITERABLE if hasattr(dataset, "__iter__") else DatasetKind.MAP
    spec = WorkerSpec(dataset, kind, list, NumpyFramework(), worker_count=int(worker), base_seed=3, **options)
    return Runner(spec, WorkerIdentity(0, 1, 3, dataset, threaded=True) if worker else None)


class FakeBuffer:
    crosses = False
    has_space = False

    def allocate(self, size: int) -> tuple[Any, int] | None:
        return None


def test_the_buffer_is_current_for_the_duration_of_the_task() -> None:
    dataset, buffer = RecordsBuffers(), FakeBuffer()
    runner = make(dataset)
    assert runner.run(Task(0, [1, 2]), buffer) == [1, 2]
    assert dataset.buffers == [buffer, buffer]
    assert memory.current() is None


def test_the_buffer_is_withdrawn_after_a_failure() -> None:
    runner = make(RecordsBuffers())
    with pytest.raises(ValueError, match="nine"):
        runner.run(Task(0, [9]), FakeBuffer())
    assert memory.current() is None


@pytest.mark.parametrize(("index", "kind", "payload"), [(1, ResultKind.DONE, list), (9, ResultKind.FAILED, ValueError)])
def test_an_attempt_returns_a_batch_or_the_failure(index: int, kind: ResultKind, payload: type) -> None:
    result = make(RecordsBuffers()).attempt(Task(7, [index]), 4, None)
    assert (result.kind, result.task_id, result.worker) == (kind, 7, 4)
    assert type(result.payload) is payload
    assert (result.busy_ns > 0) == (kind is ResultKind.DONE)


def test_stop_iteration_raised_by_a_sample_is_a_failure() -> None:
    result = make(RecordsBuffers()).attempt(Task(0, [8]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert type(result.payload) is StopIteration


def test_a_stream_restarts_with_every_new_epoch_only() -> None:
    dataset = Streams()
    runner = make(dataset)
    assert [runner.attempt(Task(0, 2), 0, None).payload for _ in range(2)] == [[1, 1], [1]]
    assert runner.attempt(Task(0, 2), 0, None).kind is ResultKind.ENDED
    assert runner.attempt(Task(0, 2, epoch=1), 0, None).payload == [2, 2]
    assert runner.attempt(Task(0, 2, epoch=2), 0, None).payload == [3, 3]
    assert dataset.started == 3


def test_a_worker_begins_the_epochs_that_it_has_missed() -> None:
    dataset = Streams()
    runner = make(dataset)
    assert runner.attempt(Task(0, 2, epoch=3), 0, None).payload == [4, 4], "a new worker in the fourth epoch"
    assert runner.attempt(Task(0, 2, epoch=5), 0, None).payload == [6, 6]


@pytest.mark.parametrize("worker", [False, True])
def test_setup_errors_are_raised_by_every_task(worker: bool) -> None:
    runner = make(FailsToStart(), worker=worker)
    for _ in range(2):
        result = runner.attempt(Task(0, 2), 0, None)
        assert result.kind is ResultKind.FAILED
        assert "no such shard" in str(result.payload)


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


def test_a_stream_that_fails_to_start_does_not_make_the_worker_unready() -> None:
    runner = make(FailsToStart(), worker=True)
    runner.attempt(Task(0, 2), 0, None)
    assert runner.unready is None


def test_report_alive_is_called_before_the_users_init_function() -> None:
    events: list[str] = []
    dataset = RecordsBuffers()
    spec = WorkerSpec(
        dataset,
        DatasetKind.MAP,
        list,
        NumpyFramework(),
        worker_count=1,
        base_seed=3,
        init=lambda number: events.append(f"init {number}"),
    )
    Runner(spec, WorkerIdentity(0, 1, 3, dataset, threaded=True), report_alive=lambda: events.append("born"))
    assert events == ["born", "init 0"]


# -- samples that fail ---


class Torn:
    """Samples that are multiples of `every` fail; records requested indices."""

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


def test_without_a_policy_a_failure_is_raised_and_reported() -> None:
    result = make(Torn(), worker=True).attempt(Task(0, [1, 4, 5]), 0, None)
    assert result.kind is ResultKind.FAILED
    assert faults_of(result) == [(4, "raise")]
    assert any("sample 4 (stage: fetch, worker 0)" in note for note in result.payload.__notes__)


def test_a_collate_failure_is_reported_with_its_samples() -> None:
    def broken(samples: Any) -> Any:
        raise TypeError("no two are alike")

    spec = WorkerSpec(Torn(), DatasetKind.MAP, broken, NumpyFramework(), worker_count=0, base_seed=3)
    result = Runner(spec, None).attempt(Task(0, [1, 2]), 0, None)
    assert faults_of(result) == [([1, 2], "raise")]
    assert any("1, 2" in note and "collate" in note for note in result.payload.__notes__)


def test_a_failed_call_is_not_reported_as_a_fault_of_a_sample() -> None:
    result = make(Torn()).attempt(Task(0, Call("no_such_method")), 0, None)
    assert (result.kind, result.notes) == (ResultKind.FAILED, None)


def test_a_batch_with_skipped_samples_has_the_others() -> None:
    result = guarded(Torn()).attempt(Task(3, [3, 4, 5, 8]), 0, None)
    assert (result.kind, result.payload) == (ResultKind.DONE, [3, 5])
    assert faults_of(result) == [(4, "skip"), (8, "skip")]


def test_a_batch_whose_samples_all_fail_is_empty() -> None:
    result = guarded(Torn()).attempt(Task(3, [4, 8]), 0, None)
    assert (result.kind, result.task_id, result.payload) == (ResultKind.EMPTY, 3, None)
    assert faults_of(result) == [(4, "skip"), (8, "skip")]


def test_known_bad_samples_are_not_requested() -> None:
    dataset = Torn()
    result = guarded(dataset).attempt(Task(3, [3, 4, 5], skip=(1,)), 0, None)
    assert (result.kind, result.payload) == (ResultKind.DONE, [3, 5])
    result = guarded(dataset).attempt(Task(4, [4, 8], skip=(0, 1)), 0, None)
    assert (result.kind, faults_of(result)) == (ResultKind.EMPTY, [])
    assert dataset.asked == [3, 5]


def test_the_pause_before_a_retry_is_left_to_the_engine() -> None:
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
    assert all(10 <= wait <= 45 for wait in waits), "the test did not actually wait"


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
    assert notes.dataset == {"asked": [3]}, "a copy of the state at that time"


def test_a_dataset_without_a_state_has_no_notes() -> None:
    assert make(RecordsBuffers()).attempt(Task(0, [1], snapshot=True), 0, None).notes is None


def test_a_worker_resumes_from_the_state_in_its_task() -> None:
    runner = make(Counting(), worker=True)
    notes = runner.attempt(Task(0, [1], resume=Resume({"asked": [40]}), snapshot=True), 0, None).notes
    assert notes is not None
    assert notes.dataset == {"asked": [41]}


def test_a_state_that_the_dataset_rejects_fails_the_first_task() -> None:
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


def test_notes_hold_the_consumed_count_near_the_end_of_a_shared_stream() -> None:
    sharding = StreamSharding(2, Share(0, 2, "exact"))
    runner = make(Streams(), sharding=sharding)  # three samples
    notes = runner.attempt(Task(0, Span(0), snapshot=True), 0, None).notes
    assert notes is not None
    assert notes.consumed == 3


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


def test_samples_draw_the_same_numbers_on_every_kind_of_worker() -> None:
    with globals_kept():
        own = {kind: [first for first, _ in drawn(threaded=kind, seeded=False)] for kind in (None, True, False)}
        assert own[None] == own[True] == own[False]
        assert len(set(own[None])) == 3
        assert drawn(threaded=None, seeded=True) == drawn(threaded=False, seeded=True)


def test_worker_threads_do_not_seed_the_global_generators() -> None:
    with globals_kept():
        random.seed(1)
        first = [second for _, second in drawn(threaded=True, seeded=True)]
        random.seed(2)
        assert [second for _, second in drawn(threaded=True, seeded=True)] != first


def test_without_workers_the_global_generators_are_restored() -> None:
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
