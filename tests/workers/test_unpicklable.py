"""Errors name the object that cannot be pickled, wherever it is, and say what to do; nothing else is blamed."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import pickle
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default, pad
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from feedline.types import DatasetKind
from feedline.workers.failure import UNPICKLABLE
from feedline.workers.processes.payload import Payload
from feedline.workers.unpicklable import explain


class Holding:
    """A dataset with whatever attributes it is given."""

    items: list[Any]
    lock: Any

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def method(self, value: Any) -> Any:
        return value


class InSlots:
    __slots__ = ("kept", "never_filled")

    def __init__(self, kept: Any) -> None:
        self.kept = kept


class AList(list[Any]):
    """A subclass of list."""


class AnArray(np.ndarray[Any, Any]):
    """A subclass of numpy.ndarray."""


class OwnState:
    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.left_out = threading.Lock()

    def __getstate__(self) -> Any:
        return {"renamed": [self.kept], "kept": self.kept}


class OutOfBand:
    """Hands its memory over, as pickle's protocol 5 allows."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytes, (pickle.PickleBuffer(self.memory),)


class Raising:
    def __getstate__(self) -> Any:
        raise ValueError("not today")


def spec_of(dataset: Any = None, collate: Any = default, init: Any = None, framework: Any = None) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.MAP, collate, framework or TorchFramework(), 1, 5, init=init)


def explained(spec: WorkerSpec) -> str:
    """Return the error message for a specification that cannot be sent."""
    with pytest.raises((*UNPICKLABLE, RuntimeError, ValueError)) as refused:
        Payload(spec)
    return str(explain(spec, refused.value))


def path_in(message: str) -> str:
    path, _, rest = message.partition(" (of type ")
    assert rest, message
    return path


def local_function() -> Any:
    def inside() -> None: ...

    return inside


bad = local_function()
"""Any object that cannot be pickled."""


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        (bad, "dataset"),
        (Holding(transform=Holding(fns=[abs, math.floor, lambda x: x])), "dataset.transform.fns[2]"),
        (Holding(kept={1: {(2, 3): bad}}), "dataset.kept[1][...]"),
        (Holding(kept={"a": 1, bad: 2}), "Something in dataset"),
        (Holding(kept=AList([1, InSlots(bad)])), "dataset.kept[1].kept"),
        (Holding(kept=OwnState(bad)), "dataset.kept.kept"),
        (Holding(kept=Raising()), "dataset.kept"),
        (Holding(kept=Holding(inner=bad).method), "dataset.kept.__self__.inner"),
        (Holding(kept=functools.partial(print, bad)), "dataset.kept.args[0]"),
        (Holding(kept=np.array([[1, bad]], object)), "Something in dataset"),
        (torch.utils.data.Subset(Holding(kept=bad), [0]), "dataset.dataset.kept"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_smallest_part_is_named(dataset: Any, path: str) -> None:
    message = explained(spec_of(dataset))
    assert path_in(message) == path
    assert 'engine="thread"' in message


@pytest.mark.parametrize(
    ("collate", "path"),
    [
        (bad, "collate_fn"),
        (functools.partial(print, end=bad), "collate_fn.keywords['end']"),
        (pad(inner=lambda samples: samples), "collate_fn.inner"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions_are_named_after_the_loaders_arguments(collate: Any, path: str) -> None:
    assert path_in(explained(spec_of([], collate))) == path
    assert path_in(explained(spec_of([], init=collate))) == path.replace("collate_fn", "worker_init_fn")


# -- what is not to blame --------------------------------------------------------------------------------------------

SPAWN = multiprocessing.get_context("spawn")

MEGABYTE = 1 << 20


def test_objects_that_processes_can_share_are_not_blamed() -> None:
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


def refuse(value: Any) -> Any:
    raise AssertionError("the device would keep the memory for a receiver that never comes")


@pytest.fixture(scope="module")
def on_device() -> torch.Tensor:
    """A tensor that is made before the test: CUDA opens files for the life of the process."""
    return torch.zeros(3, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_tensors_on_a_device_are_neither_blamed_nor_shared(
    on_device: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", refuse)
    dataset = Holding(tensor=on_device, parameter=torch.nn.Parameter(on_device), lock=threading.Lock())
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"


def test_a_part_is_not_blamed_for_its_owner() -> None:
    dataset = Holding()
    dataset.items = [Holding(parent=dataset) for _ in range(3)]
    dataset.lock = threading.Lock()
    assert path_in(explained(spec_of(dataset))) == "dataset.lock"
