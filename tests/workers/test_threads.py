"""Worker threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from feedline.abc import Engine
from feedline.abc.faults import Failure, Verdict
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.arena import Arena
from feedline.types import DatasetKind, Result, ResultKind, Task, WorkerIdentity
from feedline.workers import threads
from feedline.workers.threads import ThreadEngine
from tests import program_server
from tests.contracts.engine import EngineContract, Numbers
from tests.contracts.gate import Gate


class TestThreads(EngineContract):
    tells_stacks = True

    def make_engine(self) -> Engine:
        return ThreadEngine(2)


class TestThreadsWithAnArena(EngineContract):
    tells_stacks = True

    def make_engine(self) -> Engine:
        return ThreadEngine(2, Arena(4, shared=False, budget=1 << 20))


def spec_of(dataset: Any, **options: Any) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.MAP, default, NumpyFramework(), worker_count=1, base_seed=0, **options)


def test_a_worker_drops_its_reference_to_a_sent_result() -> None:
    """Even if it is not scheduled again: an exception may reference the iterator, which would keep it alive."""
    held: list[Any] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is not threads._serve.__code__:
            return None
        held.extend(value for value in list(frame.f_locals.values()) if isinstance(value, Result))
        return trace

    threading.settrace(trace)
    try:
        engine = ThreadEngine(1)
        engine.open(spec_of(Numbers()))
        engine.start()
    finally:
        threading.settrace(None)
    engine.submit(0, Task(0, [0]))
    (result,) = engine.collect(10)
    assert result.kind is ResultKind.DONE
    engine.close()
    assert held == []


# -- replacing a worker ---


class RecordsWorkers(NumpyFramework):
    """Records the workers."""

    def __init__(self) -> None:
        self.workers: list[WorkerIdentity] = []

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> Any:
        self.workers.append(worker)
        return super().open_worker(worker, base_seed, shared_seed)


def test_a_new_worker_has_a_seed_and_a_dataset_of_its_own() -> None:
    framework, dataset = RecordsWorkers(), Numbers()
    engine = ThreadEngine(2)
    spec = WorkerSpec(dataset, DatasetKind.MAP, default, framework, worker_count=2, base_seed=10)
    engine.open(spec)
    for number in range(3):
        engine.replace(number % 2)
    engine.close()
    assert len(framework.workers) == 5
    assert len({worker.seed for worker in framework.workers}) == 5
    assert len({id(worker.dataset) for worker in framework.workers} | {id(dataset)}) == 6


class Waiting:
    """A policy that retries a sample after a year."""

    never_catches = False

    def decide(self, failure: Failure, chance: float) -> Verdict:
        return Verdict("retry", wait_s=365 * 86_400)


def test_closing_does_not_wait_for_a_pending_retry() -> None:
    asked = threading.Event()

    class Failing(Numbers):
        def __getitem__(self, index: int) -> Any:
            asked.set()
            raise OSError("later")

    engine = ThreadEngine(1)
    engine.open(spec_of(Failing(), on_error=Waiting()))
    engine.submit(0, Task(0, [3]))
    assert asked.wait(100)
    (thread,) = engine._threads
    engine.close()
    thread.join(100)
    assert not thread.is_alive()


# -- closing ---


def test_closing_many_stuck_workers_takes_no_longer_than_closing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Noting(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            super().join(timeout)

    monkeypatch.setattr("feedline.workers.threads.threading.Thread", Noting)
    with Gate(tmp_path / "gate") as gate:
        engine = ThreadEngine(4)
        engine.open(spec_of(Numbers(gate, held=(0,))))
        engine.start()
        for worker in range(4):
            engine.submit(worker, Task(worker, [0]))
        gate.wait_until_reached(4)
        engine.close()
        gate.open(4)
    assert waits[0] is not None
    assert all(wait is not None and wait <= waits[0] / 4 for wait in waits[1:]), "the first join used up the timeout"


@pytest.mark.parametrize("closed", [True, False])
def test_the_program_waits_at_exit_for_a_thread_that_makes_a_sample(closed: bool) -> None:
    """Ending a thread inside a decoder would crash the program."""
    program = f"""
import sys, threading, time
from feedline import Loader

begun = threading.Event()

class Slow:
    def __len__(self):
        return 2  # no sample follows the slow one, however late the program ends
    def __getitem__(self, index):
        if index:
            begun.set()
            time.sleep(0.8)  # a program that does not wait has ended before
            sys.stdout.write("whole\\n")
            sys.stdout.flush()
        return index

loader = Loader(Slow(), 1, workers=1, engine="thread")
batches = iter(loader)
next(batches)
begun.wait()
if {closed}:
    loader.close()
"""
    done = program_server.run(program, finalizes=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")
