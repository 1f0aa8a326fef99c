"""Sending the specification to workers that inherit no memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.torch import TorchFramework
from feedline.types import DatasetKind
from feedline.workers.processes.payload import Payload
from tests.mappings import of_feedline

MEGABYTE = 1 << 20


def spec_of(dataset: Any, **options: Any) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.MAP, default, TorchFramework(), worker_count=1, base_seed=5, **options)


@contextmanager
def payload_of(dataset: Any) -> Iterator[Payload]:
    payload = Payload(spec_of(dataset))
    try:
        yield payload
    finally:
        payload.close()


def arrive(dataset: Any) -> Any:
    with payload_of(dataset) as payload:
        return payload.open(0).dataset


# -- what can be sent ---


def test_only_shared_tensors_stay_shared() -> None:
    shared, own = torch.zeros(10).share_memory_(), torch.zeros(10)
    arrived = arrive((shared, own))
    arrived[0][:] = 1
    arrived[1][:] = 1
    assert shared.tolist() == [1] * 10
    assert own.tolist() == [0] * 10
    shared[0] = 5
    assert arrived[0][0] == 5


def test_a_worker_that_starts_later_gets_the_file_that_the_dataset_had(tmp_path: Path) -> None:
    near, far = multiprocessing.Pipe()
    with near, payload_of(far) as payload:
        number = far.fileno()
        far.close()
        with open(tmp_path / "other", "wb") as other:
            assert other.fileno() == number, "another file has the number now"
            with payload.open(0).dataset as arrived:
                arrived.send("hello")
        assert near.recv() == "hello"


# -- what cannot ---


@pytest.mark.parametrize("dataset", [lambda: 1, threading.Lock(), (number for number in [1])])
def test_unpicklable_datasets_leave_no_descriptor_open(dataset: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        Payload(spec_of(dataset))
    assert len(os.listdir("/proc/self/fd")) == before


# -- real workers ---


class Holder(Dataset[Any]):
    """A dataset with 16 MB of arrays, and with objects that processes share."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.array = np.arange(MEGABYTE, dtype=np.float64)
        self.tensor = torch.arange(MEGABYTE, dtype=torch.float64)
        self.lock = context.Lock()
        self.calls = context.Value("i", 0, lock=False)
        self.marks = torch.zeros(64).share_memory_()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.lock:
            self.calls.value += 1
        self.marks[index] = 1
        seen = float(self.array[0]), float(self.tensor[0])
        self.array[:4] += 1
        self.tensor[:4] += 1
        return {
            "pid": os.getpid(),
            "seen": str(seen),
            "sum": float(self.array[4:].sum() + self.tensor[4:].sum()),
        }


@pytest.mark.slow
def test_workers_share_the_arrays_of_the_dataset_and_writes_stay_private() -> None:
    dataset = Holder()
    loader = DataLoader(
        dataset, 4, num_workers=2, multiprocessing_context="forkserver", persistent_workers=True, collate_fn=list
    )
    samples = [sample for batch in loader for sample in batch]
    by_worker: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        by_worker.setdefault(sample["pid"], []).append(sample)
    assert len(by_worker) == 2
    # Both have read all 16 MB, which exist once, except for one private page per array.
    mapped = [found.sizes for pid in by_worker for found in of_feedline(pid) if not found.is_shared]
    assert sum(sizes["Rss"] for sizes in mapped) >= 2 * 16 * MEGABYTE
    assert sum(sizes["Pss"] for sizes in mapped) < 0.6 * sum(sizes["Rss"] for sizes in mapped)
    # Only the worker itself saw what it wrote.
    for own in by_worker.values():
        assert {sample["seen"] for sample in own} == {str((float(n), float(n))) for n in range(len(own))}
    assert dataset.array[0] == dataset.tensor[0] == 0
    # Shared objects are still shared.
    assert dataset.calls.value == 64
    assert dataset.marks.tolist() == [1] * 64
    loader.close()
