"""What can be sent to a worker that is being started is not blamed, and nothing is sent to find that out."""

from __future__ import annotations

import multiprocessing
import os
import threading
import tracemalloc
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.engines.unpicklable import explain
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from tests.engines.unpicklable.objects import AnArray, Holding, OutOfBand, bad, explained, path_in, spec_of

SPAWN = multiprocessing.get_context("spawn")
HEAP = SPAWN.Value("i", 0)
"""The first shared value makes multiprocessing open a file for all of them, which no test is to be blamed for."""

MEGABYTE = 1 << 20


def test_what_processes_can_share_is_not_blamed() -> None:
    here, there = SPAWN.Pipe()
    tasks = SPAWN.Queue()
    dataset = Holding(
        lock=SPAWN.Lock(),
        tasks=tasks,
        value=SPAWN.Value("i", 0),
        pipe=there,
        tensor=torch.zeros(3).share_memory_(),
        last=bad,
    )
    before = len(os.listdir("/proc/self/fd"))
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.last"
    assert len(os.listdir("/proc/self/fd")) == before
    tasks.close()
    here.close()
    there.close()


def test_a_lock_of_another_start_method_is_to_blame() -> None:
    lock = multiprocessing.get_context("fork").Lock()
    if not hasattr(lock, "_is_fork_ctx"):
        pytest.skip("this version of Python sends it, and the worker cannot use it")
    message = explained(spec_of(Holding(lock=lock)))
    assert path_in(message) == "dataset.lock"
    assert 'get_context("spawn").Lock()' in message


def test_the_process_that_is_being_started_is_remembered() -> None:
    starting: Any = object()
    multiprocessing.context.set_spawning_popen(starting)
    try:
        explain(spec_of(bad), TypeError())
        assert multiprocessing.context.get_spawning_popen() is starting
    finally:
        multiprocessing.context.set_spawning_popen(None)


@pytest.mark.parametrize("framework", [TorchFramework(), NumpyFramework()])
def test_arrays_and_tensors_are_neither_blamed_nor_copied_nor_moved(framework: Any, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(16 * MEGABYTE,))
    tensor = torch.zeros(16 * MEGABYTE, dtype=torch.uint8)
    dataset = Holding(
        array=np.zeros(16 * MEGABYTE, np.uint8),
        with_gaps=np.zeros(32 * MEGABYTE, np.uint8)[::2],
        named=np.zeros(16 * MEGABYTE, np.uint8).view(AnArray),
        mapped=mapped,
        data=bytes(16 * MEGABYTE),
        out_of_band=OutOfBand(16 * MEGABYTE),
        tensor=tensor,
        view=tensor[::2],
        weights=torch.nn.Parameter(torch.zeros(3)),
        storage=tensor.untyped_storage(),
        dtype=torch.float32,
        last=bad,
    )
    tracemalloc.start()
    try:
        message = str(explain(spec_of(dataset, framework=framework), TypeError()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path_in(message) == "dataset.last"
    assert peak < MEGABYTE
    assert not tensor.is_shared(), "torch's own way of sending would move it to shared memory"


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    is_cuda = True


def refuse(value: Any) -> Any:
    raise AssertionError("the device would keep the memory for a receiver that never comes")


def test_a_tensor_on_a_device_is_neither_blamed_nor_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    reducers: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    monkeypatch.setitem(reducers, OnDevice, refuse)
    dataset = Holding(tensor=torch.zeros(3).as_subclass(OnDevice), lock=threading.Lock())
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"


@pytest.fixture(scope="module")
def on_device() -> torch.Tensor:
    """A tensor that is made before the test: CUDA opens files for the life of the process."""
    return torch.zeros(3, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_tensors_on_a_device(on_device: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", refuse)
    dataset = Holding(tensor=on_device, parameter=torch.nn.Parameter(on_device), lock=threading.Lock())
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"
