"""Worker processes with portable means only: the contract under every start method, deaths, closing."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import signal
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline.abc import Engine
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Codec
from feedline.types import Result, ResultKind, SlotBatch, Task
from feedline.workers.portable import segments
from feedline.workers.portable.segments import Outbox
from feedline.workers.processes.engine import ProcessEngine
from feedline.workers.processes.messages import Message
from tests.contracts.engine import EngineContract, Numbers
from tests.workers.processes.test_engine import answer
from tests.workers.processes.test_engine import at_work as with_workers


def batch_of(result: Result) -> Any:
    slot_batch = result.payload
    assert isinstance(slot_batch, SlotBatch)
    assert slot_batch.slot == -1
    codec = Codec(NumpyFramework())
    if slot_batch.reader is None:
        return codec.decode_packed(slot_batch.header, slot_batch.used)
    return codec.decode(slot_batch.header, slot_batch.reader)


class PortableContract(EngineContract):
    has_processes = True
    start_method = "fork"

    def make_engine(self) -> Engine:
        return ProcessEngine(2, None, multiprocessing.get_context(self.start_method))

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


at_work = functools.partial(with_workers, portable=True)


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


def no_shared_memory(*_: Any, **__: Any) -> Any:
    raise OSError("no shared memory here")


def no_space_left(*_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "place", [(segments, "SharedMemory", no_shared_memory), (os, "posix_fallocate", no_space_left)]
)
def test_without_shared_memory_batches_go_through_the_pipe(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*place)
    with at_work(Large()) as engine:
        for number in range(3):
            batch = batch_of(answer(engine, Task(number, [number, 9])))
            assert batch[:, 7].tolist() == [number, 9]
            batch += 1  # the consumer owns it
        assert not segment_names()


def test_the_segments_of_other_programs_are_left_alone() -> None:
    with at_work(Large()) as engine:
        answer(engine, Task(0, [0]))  # so that the next one is made in a segment
        other = SharedMemory(f"{engine._channels[0].prefix}1", create=True, size=100)  # type: ignore[attr-defined]
        try:
            assert batch_of(answer(engine, Task(1, [1])))[0, 0] == 1
        finally:
            other.close()
            other.unlink()


class Varying:
    """Sample i is a batch of sizes that differ widely; some samples fail."""

    SIZES = (0, 1, 200_000, 10, 10 << 20, 150_000, 100)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if index % 10 == 9:
            raise ValueError("torn")
        return np.full(self.SIZES[index % 7], index % 251, np.uint8)


def test_batches_of_any_size_arrive_and_leave_no_segment() -> None:
    with at_work(Varying()) as engine:
        for number in range(40):
            result = answer(engine, Task(number, [number]))
            assert (result.kind is ResultKind.FAILED) == (number % 10 == 9)
            if result.kind is ResultKind.DONE:
                assert np.array_equal(batch_of(result), [Varying.__getitem__(Varying(), number)])
        engine.close()
        assert not segment_names()


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_a_worker_killed_after_creating_a_segment_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with = Outbox.answer

    def make_and_die(outbox: Outbox, *arguments: Any) -> Message:
        message = answer_with(outbox, *arguments)
        assert segment_names()
        os.kill(os.getpid(), signal.SIGKILL)
        return message

    monkeypatch.setattr(Outbox, "answer", make_and_die)
    with at_work(Large()) as engine:
        result = answer(engine, Task(0, [0]))
        assert result.kind is ResultKind.DIED
        assert "SIGKILL" in str(result.payload), "not by the assertion above"
        assert not segment_names()


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closing_removes_the_segment_of_an_uncollected_answer() -> None:
    with at_work(Large()) as engine:
        for number in range(3):
            engine.submit(0, Task(number, [number]))
        assert [result.task_id for result in engine.collect(30)] == [0]
        while not segment_names():  # of the second answer
            os.sched_yield()
        engine.close()
        assert not segment_names()
        assert mapped_segments() == 0


def test_workers_of_another_engine_do_not_keep_a_pipe_open() -> None:
    with at_work(Numbers()) as first:
        answer(first, Task(0, [0]))
        with at_work(Numbers(), 2) as second:
            answer(second, Task(0, [0]))
            (sentinel,) = (child.sentinel for child in multiprocessing.active_children() if child.pid in first.pids)
            first._channels[0].near.close()  # without killing the worker
            assert wait([sentinel], 30) == [sentinel]


def test_many_kept_batches_do_not_use_up_the_descriptors() -> None:
    with at_work(Large()) as engine:
        answer(engine, Task(100, [0]))
        before = len(os.listdir("/proc/self/fd"))
        kept = [batch_of(answer(engine, Task(number, [number]))) for number in range(100)]
        assert len(os.listdir("/proc/self/fd")) - before <= 64
    assert [batch[0, 0] for batch in kept] == list(range(100))
