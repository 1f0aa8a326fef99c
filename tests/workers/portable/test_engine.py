"""Worker processes with portable means only: the contract under every start method, deaths, closing."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.abc import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.errors import WorkerDied
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Codec, SlotWriter
from feedline.testing import EngineContract, Gate
from feedline.testing.engine import Numbers
from feedline.types import DatasetKind, Result, ResultKind, SlotBatch, Task
from feedline.workers.portable import PortableEngine, segments
from feedline.workers.portable.segments import BatchBytes, Outbox


def batch_of(result: Result) -> Any:
    slot_batch = result.payload
    assert isinstance(slot_batch, SlotBatch)
    assert slot_batch.slot == -1
    return Codec(NumpyFramework()).decode(slot_batch.header, slot_batch.reader)


class PortableContract(EngineContract):
    has_processes = replaces_workers = True
    start_method = "fork"

    def make_engine(self) -> Engine:
        return PortableEngine(2, multiprocessing.get_context(self.start_method))

    def batch_of(self, result: Result) -> Any:
        return batch_of(result)


class TestFork(PortableContract):
    pass


@pytest.mark.slow
class TestForkServer(PortableContract):
    start_method = "forkserver"


class Large:
    """Sample i is an array of 200 kB of i."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        return np.full(25_000, float(index))


class Deadly(Large):
    """Sample 13 ends its worker."""

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@contextmanager
def at_work(dataset: Any, worker_count: int = 1, **options: Any) -> Iterator[PortableEngine]:
    options = {"collate": default, **options}
    engine = PortableEngine(worker_count, multiprocessing.get_context("fork"))
    spec = WorkerSpec(
        dataset, DatasetKind.MAP, framework=NumpyFramework(), worker_count=worker_count, base_seed=0, **options
    )
    try:
        engine.open(spec)
        engine.start()
        yield engine
    finally:
        engine.close()


def answer(engine: PortableEngine, task: Task, worker: int = 0) -> Result:
    engine.submit(worker, task)
    (result,) = engine.collect(30)
    return result


def segment_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("feedline_")}


def mapped_segments() -> int:
    return sum("/dev/shm/feedline_" in line for line in Path("/proc/self/maps").read_text().splitlines())


# -- transport ---------------------------------------------------------------------------------------------------------


def test_a_large_batch_can_be_kept_and_changed() -> None:
    with at_work(Large()) as engine:
        kept = [batch_of(answer(engine, Task(number, [number, 500]))) for number in range(5)]
        assert not segment_names(), "mapped, and the name removed"
        kept[0] += 1
    assert [batch[0, -1] for batch in kept] == [1, 1, 2, 3, 4]
    assert all((batch[1] == 500 + (batch is kept[0])).all() for batch in kept)
    assert mapped_segments() == 5
    del kept
    assert mapped_segments() == 0


def test_many_kept_batches_do_not_use_up_the_descriptors() -> None:
    with at_work(Large()) as engine:
        answer(engine, Task(100, [0]))
        before = len(os.listdir("/proc/self/fd"))
        kept = [batch_of(answer(engine, Task(number, [number]))) for number in range(100)]
        assert len(os.listdir("/proc/self/fd")) - before <= 64
    assert [batch[0, 0] for batch in kept] == list(range(100))


def test_without_shared_memory_batches_go_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no shared memory here")

    monkeypatch.setattr(segments, "SharedMemory", refuse)
    with at_work(Large()) as engine:
        for number in range(3):
            batch = batch_of(answer(engine, Task(number, [number, 9])))
            assert batch[:, 7].tolist() == [number, 9]
            batch += 1  # the consumer owns it


class KeepsBatches:
    """A collate function that keeps the batches it made and returns the oldest of them again."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        self.kept = [*self.kept[-5:], default(samples)]
        return self.kept[-1], self.kept[0].copy()


def test_what_a_collate_function_keeps_is_not_overwritten() -> None:
    with at_work(Large(), collate=KeepsBatches()) as engine:
        batches = [batch_of(answer(engine, Task(number, [number]))) for number in range(12)]
    assert [new[0, 0] for new, _ in batches] == list(range(12))
    assert [(old.min(), old.max()) for _, old in batches] == [(max(0, i - 5), max(0, i - 5)) for i in range(12)]


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_a_death_is_reported_once_after_the_workers_last_results() -> None:
    with at_work(Deadly()) as engine:
        (pid,) = engine.pids
        for number, index in enumerate([1, 2, 13, 3]):
            engine.submit(0, Task(number, [index]))
        results: list[Result] = []
        while not results or results[-1].kind is not ResultKind.DIED:
            results += engine.collect(30)
        assert [(result.kind, result.task_id) for result in results[:2]] == [(ResultKind.DONE, 0), (ResultKind.DONE, 1)]
        assert len(results) == 3
        death = results[2].payload
        assert type(death) is WorkerDied
        assert f"(pid(s) {pid}) exited unexpectedly" in str(death)
        assert "SIGKILL" in str(death)
        assert engine.collect(0.05) == []
        assert engine.revoke(0) == 3, "its pending task can still be given to another worker"


def test_a_worker_killed_after_creating_a_segment_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Outbox.post

    def post_and_die(outbox: Outbox, writer: SlotWriter, name: str) -> BatchBytes:
        batch_bytes = post(outbox, writer, name)
        assert segment_names()
        os.kill(os.getpid(), signal.SIGKILL)
        return batch_bytes

    monkeypatch.setattr(Outbox, "post", post_and_die)
    with at_work(Large()) as engine:
        result = answer(engine, Task(0, [0]))
        assert result.kind is ResultKind.DIED
        assert "SIGKILL" in str(result.payload), "not by the assertion above"
        assert not segment_names()


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closing_removes_the_segments_of_uncollected_results(tmp_path: Path) -> None:
    class Held(Large):
        gate: Gate

        def __getitem__(self, index: int) -> NDArray[np.float64]:
            if index == 3:
                self.gate.pass_through()
            return super().__getitem__(index)

    dataset = Held()
    with Gate(tmp_path / "gate") as dataset.gate, at_work(dataset) as engine:
        for number in range(4):
            engine.submit(0, Task(number, [number]))
        dataset.gate.wait_until_reached()
        engine.close()
        assert not segment_names()
        assert mapped_segments() == 0


def test_workers_of_another_engine_do_not_keep_a_pipe_open() -> None:
    with at_work(Numbers()) as first:
        answer(first, Task(0, [0]))
        with at_work(Numbers(), 2) as second:
            answer(second, Task(0, [0]))
            (sentinel,) = (child.sentinel for child in multiprocessing.active_children() if child.pid in first.pids)
            first._lanes[0].put(None)  # closes the pipe without killing the worker
            assert wait([sentinel], 30) == [sentinel]


def test_workers_exit_when_the_training_process_is_killed() -> None:
    program = textwrap.dedent(
        """
        import multiprocessing, sys
        from feedline import Loader
        from feedline.workers import abilities

        abilities.can_share_arenas = lambda: False
        batches = iter(Loader(range(1000), 2, workers=2, start_method="fork"))
        next(batches)
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        workers = [os.pidfd_open(pid) for pid in pids]
        try:
            trainer.kill()
            for handle in workers:
                assert select.select([handle], [], [], 30)[0], "a worker outlived the training process"
        finally:
            for handle in workers:
                os.close(handle)
