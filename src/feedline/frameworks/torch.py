"""torch as a framework: its worker info, its seeds, its data pipes."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.random  # otherwise loaded on first use, in every forked worker
import torch
from torch.utils.data import graph_settings
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _sharding_worker_init_fn

from feedline.abc.framework import Framework, Gather, Reducer
from feedline.frameworks import torch_tensors
from feedline.frameworks.torch_collate import default_collate, install_collate, is_default, registrations_untouched
from feedline.frameworks.torch_gather import gather_for
from feedline.system.process import lock_of_process
from feedline.types import CollateFunction, WorkerIdentity


def _worker_info(worker: WorkerIdentity, dataset: object) -> torch_worker.WorkerInfo:
    """Return the value of `get_worker_info()` in this worker."""
    info = torch_worker.WorkerInfo
    fields: dict[str, Any] = {"id": worker.id, "num_workers": worker.count, "seed": worker.seed, "dataset": dataset}
    if worker.threaded and "worker_method" in getattr(info, "__dataclass_fields__", {}):
        fields["worker_method"] = "thread"
    return info(**fields)


@contextlib.contextmanager
def worker_info_hidden() -> Iterator[None]:
    """Make `get_worker_info()` return None, for a dataset that has to yield all samples in every worker."""
    _install()
    before = torch_worker._worker_info, _thread.info, _thread.worker_info_was_read
    torch_worker._worker_info = _thread.info = None
    try:
        yield
    finally:
        torch_worker._worker_info, _thread.info, _thread.worker_info_was_read = before


class _ThreadInfo(threading.local):
    info: object = None
    worker_info_was_read = False


_thread = _ThreadInfo()


def _install() -> None:
    """Extend torch's `get_worker_info()` to support threads and to record that it was called.

    torch keeps the result in a module global, which threads cannot share, and programs hold direct references to the
    function. So we replace its code with code that looks at the thread first. Outside feedline's workers the result
    does not change.
    """
    torch_worker._feedline_thread = _thread  # type: ignore[attr-defined]
    torch_worker.get_worker_info.__code__ = _get_worker_info.__code__


def _get_worker_info() -> object:
    _feedline_thread.worker_info_was_read = True  # type: ignore[name-defined]  # noqa: F821  (torch's globals)
    return _feedline_thread.info or _worker_info  # type: ignore[name-defined]  # noqa: F821


def _seed(seed: int) -> None:
    """Seed as `torch.manual_seed` does, without keeping its stack. For worker processes, before they start work.

    torch seeds a device when it is first used. Until then it keeps the stack of this call for an error message,
    including the source lines, which it reads from their files. That takes longer than everything else a forked worker
    does until it is ready, and the stack is not needed. Test: tests/frameworks/test_torch.py
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 0
    try:
        torch.manual_seed(seed)
    finally:
        sys.tracebacklimit = before


_turn = lock_of_process()
"""Held while the graph of a data pipe is traversed: torch sets hooks on the pipe classes, which another thread
that traverses or copies a pipe would run. Test: tests/frameworks/test_torch.py"""


def seed_pipe(pipe: Any, seed: int) -> Any:
    """Seed the shufflers of a pipe."""
    with _turn:
        return graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(seed))


def shard_pipe(pipe: Any, count: int, number: int) -> object:
    """Make the sharding filters of a pipe keep one share of several."""
    with _turn:
        return graph_settings.apply_sharding(pipe, count, number)


def shard_in_worker(init: Callable[[int], None] | None, world_size: int, rank: int, worker: int) -> None:
    """Shard this worker's pipe as torch does, and call the user's `worker_init_fn`."""
    with _turn:
        _sharding_worker_init_fn(None, world_size, rank, worker)
    if init is not None:
        init(worker)


class TorchFramework(Framework):
    """Tensors in, tensors out, with torch's rules."""

    name = "torch"
    has_worker_info = True

    def gather_for(self, dataset: object, collate: CollateFunction) -> Gather | None:
        return gather_for(dataset) if is_default(collate) and registrations_untouched() else None

    def bind_collate(self, collate: CollateFunction) -> CollateFunction:
        return default_collate if is_default(collate) else super().bind_collate(collate)

    def is_default_collate(self, collate: CollateFunction) -> bool:
        return is_default(collate)

    def reducers(self) -> dict[type, Reducer]:
        return {torch.Tensor: torch_tensors.reduce_tensor, torch.UntypedStorage: torch_tensors.reduce_storage}

    # Without a method in between, which would cost a call for every batch.
    describe = staticmethod(torch_tensors.describe)
    rebuild = staticmethod(torch_tensors.rebuild)
    copier = staticmethod(torch_tensors.copier)
    makes_usual_arrays = staticmethod(torch_tensors.makes_usual_arrays)

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> object:
        install_collate()
        dataset = worker.dataset
        if worker.threaded:
            dataset = self.reset_worker(dataset, shared_seed)
            from feedline.system import openmp

            torch.get_num_threads()  # torch sets a thread's limit on the first such call, so ours has to come later
            openmp.limit_this_thread()
            _install()
            _thread.info = _worker_info(worker, dataset)
            return dataset
        torch.set_num_threads(1)
        random.seed(worker.seed)
        _seed(worker.seed)
        np.random.seed(torch_worker._generate_state(base_seed, worker.id))
        dataset = self.reset_worker(dataset, shared_seed)
        _install()
        torch_worker._worker_info = _worker_info(worker, dataset)
        return dataset

    def reset_worker(self, dataset: object, shared_seed: int | None) -> object:
        return dataset if shared_seed is None else seed_pipe(dataset, shared_seed)

    def worker_info_was_read(self) -> bool:
        return _thread.worker_info_was_read

    def reset_worker_info_read(self) -> None:
        _thread.worker_info_was_read = False
