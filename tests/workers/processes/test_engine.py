"""Worker processes: the contract under every start method, and what only processes do."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from feedline.abc import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.errors import NotPicklable, TooManyOpenFiles, WorkerDied
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.arena import Arena
from feedline.memory.codec import Codec
from feedline.types import Call, DatasetKind, Result, ResultKind, SlotBatch, Task
from feedline.workers.failure import UNPICKLABLE
from feedline.workers.processes.engine import ProcessEngine
from tests.contracts.engine import EngineContract, Numbers
from tests.contracts.engine.workload import refuse_to_start
from tests.contracts.gate import Gate
from tests.faults.limits import descriptors_left

SLOTS = 300


class ProcessContract(EngineContract):
    """The contract, with an arena for the batches."""

    has_processes = tells_stacks = True
    start_method = "fork"
    arena: Arena | None = None
    _codec = Codec(NumpyFramework())

    def make_engine(self) -> Engine:
        self.arena = Arena(SLOTS, shared=True, budget=64 << 20)
        return ProcessEngine(2, self.arena, multiprocessing.get_context(self.start_method))

    def teardown_method(self) -> None:
        self.arena = None  # closes its descriptors too

    def slot_for(self, worker: int) -> int:
        assert self.arena is not None
        return self.arena.acquire(worker)

    def batch_of(self, result: Result) -> Any:
        assert self.arena is not None
        slot_batch = result.payload
        assert isinstance(slot_batch, SlotBatch)
        if slot_batch.reader is not None:
            return self._codec.decode(slot_batch.header, slot_batch.reader)
        if slot_batch.slot < 0:
            return self._codec.decode_packed(slot_batch.header, slot_batch.used)
        return self._codec.decode(slot_batch.header, self.arena.reader(slot_batch.slot, slot_batch.used))


class TestFork(ProcessContract):
    pass


@pytest.mark.slow
class TestForkServer(ProcessContract):
    start_method = "forkserver"


def spec_of(dataset: Any, **options: Any) -> WorkerSpec:
    options = {"collate": default, "worker_count": 1, **options}
    return WorkerSpec(dataset, DatasetKind.MAP, framework=NumpyFramework(), base_seed=0, **options)


@contextmanager
def at_work(
    dataset: Any, worker_count: int = 1, *, start_method: str = "fork", portable: bool = False, **options: Any
) -> Iterator[ProcessEngine]:
    arena = None if portable else Arena(4, shared=True, budget=1 << 30)
    engine = ProcessEngine(worker_count, arena, multiprocessing.get_context(start_method))
    try:
        engine.open(spec_of(dataset, worker_count=worker_count, **options))
        engine.start()
        yield engine
    finally:
        engine.close()


def answer(engine: ProcessEngine, task: Task, worker: int = 0) -> Result:
    engine.submit(worker, task)
    (result,) = engine.collect(100)
    return result


def decode(slot_batch: SlotBatch) -> Any:
    codec = Codec(NumpyFramework())
    if slot_batch.reader is None:
        return codec.decode_packed(slot_batch.header, slot_batch.used)
    return codec.decode(slot_batch.header, slot_batch.reader)


# -- transport ---


def local_function(samples: Any) -> Any:
    return lambda: samples


def test_unpicklable_batches_raise_and_the_worker_continues() -> None:
    with at_work(Numbers(), collate=local_function) as engine:
        for number in range(2):
            result = answer(engine, Task(number, [1]))
            assert result.kind is ResultKind.FAILED
            assert type(result.payload) is NotPicklable
            assert "a function" in str(result.payload)
            assert "engine='thread'" in str(result.payload)


# -- several tasks in one message ---


def test_a_batch_that_is_ready_does_not_wait_for_a_slow_one_behind_it(tmp_path: Path) -> None:
    with Gate(tmp_path) as gate, at_work(Numbers(gate, held=(2,))) as engine:
        engine.submit_together(0, [Task(number, [number]) for number in range(4)])
        gate.wait_until_reached()
        results = engine.collect(30)
        results += engine.collect(0)
        assert [result.task_id for result in results] == [0, 1], "the third is held"
        gate.open()
        while len(results) < 4:
            results += engine.collect(30)
        assert [decode(result.payload)[0, 0] for result in results] == [0, 1, 2, 3]


def test_a_worker_that_dies_in_a_group_of_tasks_has_answered_the_earlier_ones() -> None:
    with at_work(Dying()) as engine:
        engine.submit_together(0, [Task(number, [10 + number]) for number in range(3)])
        engine.submit_together(0, [Task(3, [13]), Task(4, [1]), Task(5, [14])])
        engine.submit_together(0, [Task(6, [15]), Task(7, [16])])
        results: list[Result] = []
        while not results or results[-1].kind is not ResultKind.DIED:
            results += engine.collect(30)
        assert [result.task_id for result in results[:-1]] == [0, 1, 2, 3]
        assert [engine.revoke(0), engine.revoke(0), engine.revoke(0)] == [6, 7, None]


@pytest.mark.parametrize("wrong", [Task(1, [1], slot=2), Task(1, Call("clear")), Task(1, [lambda: 1])])
def test_if_one_task_of_a_group_cannot_be_sent_none_is(wrong: Task) -> None:
    with at_work(Numbers()) as engine:
        with pytest.raises((NotImplementedError, *UNPICKLABLE)):
            engine.submit_together(0, [Task(0, [0]), wrong])
        assert engine.collect(0.05) == []
        assert answer(engine, Task(2, [2])).task_id == 2


# -- deaths ---


class Dying:
    """Sample i ends the worker in some way."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        faulthandler.disable()  # pytest's, which would print the crash too
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index == 3:
            os._exit(7)
        if index == 4:
            os._exit(0)
        if index == 5:
            os.kill(os.getpid(), signal.SIGRTMIN + 3)
        return index


@pytest.mark.parametrize(
    ("index", "cause", "waiting_for"),
    [
        (1, r"signal 9 \(SIGKILL\).*memory", None),
        (2, r"signal 11 \(SIGSEGV\).*native code", 0),
        (3, r"exit code 7.*os\._exit", 0),
        (4, r"exit code 0", None),
        (5, rf"signal {signal.SIGRTMIN + 3} ", 0),
    ],
)
def test_a_death_is_reported_once_with_its_cause(index: int, cause: str, waiting_for: int | None) -> None:
    with at_work(Dying(), 2) as engine:
        (pid, _) = engine.pids
        engine.submit(0, Task(0, [10]))
        engine.submit(0, Task(1, [index]))
        engine.submit(0, Task(2, [11]))
        results: list[Result] = []
        while not results or results[-1].kind is not ResultKind.DIED:
            results += engine.collect(30, waiting_for)
        assert [result.kind for result in results] == [ResultKind.DONE, ResultKind.DIED], "its earlier result is kept"
        death = results[-1]
        assert death.worker == 0
        assert type(death.payload) is WorkerDied
        assert isinstance(death.payload, RuntimeError)
        with pytest.raises(WorkerDied, match=rf"(?s)pid\(s\) {pid}\).*worker 0.*{cause}"):
            raise death.payload
        assert engine.collect(0.05) == []
        engine.submit(1, Task(3, [12]))
        assert engine.collect(30)[0].kind is ResultKind.DONE, "the other worker continues"
        engine.submit(0, Task(4, [13]))
        assert engine.revoke(0) in (2, 4), "pending tasks of the dead worker can be taken back"


def test_a_worker_that_ends_before_it_is_watched_is_reported_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server reaps its children, so nothing is left of one that has ended."""
    pidfd_open = os.pidfd_open

    def open_late(pid: int) -> int:
        while Path(f"/proc/{pid}").exists():
            os.sched_yield()
        return pidfd_open(pid)

    monkeypatch.setattr("feedline.workers.processes.arena.os.pidfd_open", open_late)
    with at_work(Numbers(), start_method="forkserver", init=refuse_to_start) as engine:
        (death,) = engine.collect(100)
        assert death.kind is ResultKind.DIED


# -- replacing a worker ---


def test_late_results_of_a_replaced_worker_are_dropped(tmp_path: Path) -> None:
    """Neither its result nor its end is reported."""
    with Gate(tmp_path / "gate") as gate, at_work(Numbers(gate, held=(0,))) as engine:
        engine.submit(0, Task(0, [0]))
        gate.wait_until_reached()
        (old,) = engine.pids
        handle = os.pidfd_open(old)
        engine.replace(0)
        gate.open()
        assert select.select([handle], [], [], 30)[0], "the old worker exits after its task"
        os.close(handle)
        assert answer(engine, Task(1, [1])).task_id == 1
        assert engine.collect(0.05) == []


def test_a_failed_start_closes_the_engine_and_names_the_cause() -> None:
    with at_work(Numbers()) as engine:
        answer(engine, Task(0, [0]))
        with descriptors_left(0), pytest.raises(TooManyOpenFiles, match="ulimit -n"):
            engine.replace(0)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("left", [0, 2, 3, 5])
def test_a_start_that_finds_too_few_descriptors_leaks_none(left: int) -> None:
    arena = Arena(4, shared=True, budget=1 << 30)
    engine = ProcessEngine(1, arena, multiprocessing.get_context("fork"))
    engine.open(spec_of(Numbers()))
    with suppress(TooManyOpenFiles), descriptors_left(left):
        engine.start()
    engine.close()  # and `nothing_left_behind` looks for a pipe


def hang() -> None:
    while True:
        signal.pause()


def test_a_worker_that_hangs_right_after_its_fork_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.workers.processes.engine._BIRTH_S", 0.1)
    monkeypatch.setattr("feedline.workers.processes.worker.keep_heap_warm", hang)  # like a lock that is never released
    with at_work(Numbers()) as engine:
        (pid,) = engine.pids
        results: list[Result] = []
        while not results:
            results = engine.collect(30)
        (death,) = results
        assert death.kind is ResultKind.DIED
        assert type(death.payload) is WorkerDied
        assert not death.payload.was_ready
        message = str(death.payload)
        assert f"Worker 0 (pid {pid}) has hung since it was forked" in message
        assert "in hang" in message, "the message says where"
        monkeypatch.undo()
        engine.replace(0)
        assert answer(engine, Task(0, [0])).kind is ResultKind.DONE


class Unreadable(Numbers):
    """Its state cannot be unpickled."""

    def state_dict(self) -> Any:
        return ExplodesThere()

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("nothing is resumed")


class ExplodesThere:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_state_that_cannot_be_unpickled_fails_its_batch() -> None:
    with at_work(Unreadable()) as engine:
        result = answer(engine, Task(0, [1], snapshot=True))
        assert result.kind is ResultKind.FAILED
        assert type(result.payload) is ValueError
        assert answer(engine, Task(1, [2])).kind is ResultKind.DONE
