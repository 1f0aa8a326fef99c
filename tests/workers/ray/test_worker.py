"""The actor and the engine without a cluster: when an actor ends by itself, and how its end is reported."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind, ResultKind, Resume, Task
from feedline.workers.fetch import streams
from feedline.workers.heap import Heap
from feedline.workers.portable.worker import ALIVE, unpacked
from feedline.workers.ray import worker as module
from feedline.workers.ray.worker import RayWorker, pack_spec
from tests.workers.test_heap import SimulatedHeap


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    event = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: event.set())
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_LEFT_S", 0.2)
    monkeypatch.setattr(module, "_IDLE_S", 1.0)
    return event


def test_a_pool_actor_stays_until_its_last_loader_leaves(ended: threading.Event) -> None:
    worker = RayWorker(is_shared=True)
    worker.place("first")
    worker.place("second")
    worker.leave("first")
    assert not ended.wait(0.5)
    worker.leave("second")
    assert ended.wait(100)


@pytest.mark.slow
def test_a_pool_actor_outlives_long_tasks_and_ends_after_its_loaders_were_killed(ended: threading.Event) -> None:
    worker = RayWorker(is_shared=True)
    worker.place("killed later")
    worker._asked_s = math.inf  # as while it works
    assert not ended.wait(1.3)
    worker._asked_s = time.monotonic()
    assert ended.wait(100)


class Numbers:
    """A stream that cannot skip."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_an_actor_reports_that_it_reads_the_samples_before_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=itertools.count(0.0, 0.3).__next__))
    monkeypatch.setattr(streams, "_REPORT_S", -1.0)
    spec = WorkerSpec(Numbers(), DatasetKind.ITERABLE, list, NumpyFramework(), worker_count=1, base_seed=0)
    worker = RayWorker()
    worker._seats["loader"] = module._Seat(spec, 0, 0)
    data = pickle.dumps(Task(1, 2, resume=Resume(place=0, skip=3)))
    answers: list[bytes] = []
    while not answers or answers[-1] == ALIVE:
        answers.append(worker.work("loader", data)[0])
    assert len(answers) == 3
    answer = unpacked(answers[-1])
    assert (answer.kind, answer.batch_bytes is not None) == (ResultKind.DONE, True)
    assert worker._seats["loader"].runner.stream.place == 5


def test_an_actor_returns_memory_that_no_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    simulated = SimulatedHeap()
    now_s = itertools.count(0.0, 2.0)
    monkeypatch.setattr(module, "heap_of_this_process", lambda: Heap(simulated, now_s.__next__))
    spec = WorkerSpec([0] * 100, DatasetKind.MAP, list, NumpyFramework(), worker_count=1, base_seed=0)
    worker = RayWorker()
    assert worker.open("loader", pack_spec(spec, cloudpickle), 0, 0) is None
    simulated.need(1 << 30)  # one large sample
    for number in range(8):
        worker.work("loader", pickle.dumps(Task(number, [number])))
    assert simulated.trims == 1
    assert simulated.resident_bytes() == simulated.used
