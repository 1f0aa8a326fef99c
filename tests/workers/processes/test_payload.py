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
            "array": backing(self.array.__array_interface__["data"][0]),
            "tensor": backing(self.tensor.data_ptr()),
            "seen": str(seen),
            "sum": float(self.array[4:].sum()),
        }


def backing(address: int) -> str:
    """Return the file and inode that back an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *name = line.split()
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return f"{' '.join(name)} {inode}"
    return "nothing"


def shared_memory_of(pids: set[int], name: str) -> tuple[int, int]:
    """Return the resident and the proportional memory of these processes in mappings of this name, in kB."""
    resident = proportional = 0
    for pid in pids:
        inside = False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if "-" in line.split()[0]:
                inside = name in line
            elif inside and line.startswith("Rss:"):
                resident += int(line.split()[1])
            elif inside and line.startswith("Pss:"):
                proportional += int(line.split()[1])
    return resident, proportional


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
    # One file behind the arrays of both workers.
    (place,) = {sample["array"] for sample in samples} | {sample["tensor"] for sample in samples}
    assert "memfd:feedline" in place
    # Both have read all 16 MB, which exist once, except for one private page per array.
    resident, proportional = shared_memory_of(set(by_worker), place.rpartition(" ")[2])
    assert resident > 2 * 8 * 1024
    assert proportional < 0.6 * resident
    # Only the worker itself saw what it wrote.
    for own in by_worker.values():
        assert {sample["seen"] for sample in own} == {str((float(n), float(n))) for n in range(len(own))}
    assert dataset.array[0] == dataset.tensor[0] == 0
    # Shared objects are still shared.
    assert dataset.calls.value == 64
    assert dataset.marks.tolist() == [1] * 64
    loader.close()
