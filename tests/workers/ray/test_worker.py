"""The actor and the engine without a cluster: what it reports, and the memory that it keeps."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Bytes
from feedline.types import DatasetKind, Position, Task
from feedline.workers.fetch import streams
from feedline.workers.heap import Heap
from feedline.workers.processes.messages import Kind, unpacked
from feedline.workers.ray import worker as module
from feedline.workers.ray.engine import Store
from feedline.workers.ray.worker import RayWorker, pack_spec
from tests.workers.test_heap import SimulatedHeap


class Numbers:
    """A stream that cannot skip."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_an_actor_reports_that_it_reads_the_samples_before_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=itertools.count(0.0, 0.3).__next__))
    monkeypatch.setattr(streams, "_REPORT_S", -1.0)
    spec = WorkerSpec(Numbers(), DatasetKind.ITERABLE, list, NumpyFramework(), worker_count=1, base_seed=0)
    worker = RayWorker()
    assert worker.open(pack_spec(spec, pytest.importorskip("cloudpickle")), 0, 0) is None
    data = pickle.dumps(Task(1, 2, resume=Position(read=3)))
    answers: list[list[bytes]] = []
    while not answers or answers[-1] == []:
        answers.append(worker.work(data)[0])
    assert len(answers) == 3
    assert unpacked(answers[-1][-1]).kind is Kind.DONE
    assert worker._runner.stream is not None
    assert worker._runner.stream.place == 5


def test_an_actor_returns_memory_that_no_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    simulated = SimulatedHeap()
    now_s = itertools.count(0.0, 2.0)
    monkeypatch.setattr(module, "heap_of_this_process", lambda: Heap(simulated, now_s.__next__))
    spec = WorkerSpec([0] * 100, DatasetKind.MAP, list, NumpyFramework(), worker_count=1, base_seed=0)
    worker = RayWorker()
    assert worker.open(pack_spec(spec, cloudpickle), 0, 0) is None
    simulated.need(1 << 30)  # one large sample
    for number in range(8):
        worker.work(pickle.dumps(Task(number, [number])))
    assert simulated.trims == 1
    assert simulated.resident_bytes() == simulated.used


# -- memory of the object store ---

SIZE = 1 << 20


def read_only_array() -> Bytes:
    array = np.full(SIZE, 7, np.uint8)
    array.flags.writeable = False
    return array


def test_a_batch_counts_until_it_is_delivered_and_may_be_changed() -> None:
    store = Store(3 * SIZE)
    reader = store.open(read_only_array())
    assert store.held == SIZE
    assert store.capacity(before_known=1) == 2
    array = reader.array(0, (SIZE,), np.dtype(np.uint8))
    del reader
    assert store.held == 0
    array += 1
    assert (array == 8).all()
