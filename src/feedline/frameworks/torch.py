"""torch as a framework."""

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
from numpy.typing import NDArray
from torch.utils.data._utils import worker as torch_worker

from feedline.abc import memory
from feedline.abc.framework import Gather, Reducer
from feedline.frameworks.torch_collate import default_collate, install_collate, is_default, registrations_untouched
from feedline.frameworks.torch_gather import gather_for
from feedline.frameworks.torch_memory import tensor_of
from feedline.frameworks.torch_sending import array_in, place, read, reduce_storage, reduce_tensor
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


_mode_count = torch._C._len_torch_dispatch_stack


def _formed(tensors: list[torch.Tensor], form: bool | list[str]) -> object:
    """Return tensors in their container: a list (`form` is False), a tuple (True) or a dict with these keys."""
    if form is False:
        return tensors
    return tuple(tensors) if form is True else dict(zip(form, tensors, strict=True))


class TorchFramework:
    """Tensors in, tensors out, with torch's rules."""

    name = "torch"
    has_worker_info = True

    def gather_for(self, dataset: object, collate: CollateFunction) -> Gather | None:
        if not is_default(collate) or not registrations_untouched():
            return None
        return gather_for(dataset)

    def bind_collate(self, collate: CollateFunction) -> CollateFunction:
        if is_default(collate):
            return default_collate
        bind = getattr(collate, "bound_to", None)
        if bind is None:
            return collate
        bound: CollateFunction = bind(self)
        return bound

    def is_default_collate(self, collate: CollateFunction) -> bool:
        return is_default(collate)

    def reducers(self) -> dict[type, Reducer]:
        return {torch.Tensor: reduce_tensor, torch.UntypedStorage: reduce_storage}

    def describe(self, batch: Any, writer: memory.Writer) -> Any:
        kind = type(batch)
        if kind is torch.Tensor:
            return place(batch, writer)
        values = batch.values() if kind is dict else batch
        if kind is not list and kind is not tuple and (kind is not dict or any(type(key) is not str for key in batch)):
            return None
        if len({id(value) for value in values}) != len(batch):
            return None  # one tensor in two places: a pickle keeps it one object
        leaves = []
        for value in values:
            leaf = place(value, writer) if type(value) is torch.Tensor else None
            if leaf is None:
                return None
            leaves.append(leaf)
        return [leaves, kind is tuple] if kind is not dict else [leaves, list(batch)]

    def rebuild(self, description: Any, reader: memory.Reader) -> Any:
        if type(description) is tuple:
            return read(description, reader)
        leaves, form = description
        return _formed([read(leaf, reader) for leaf in leaves], form)

    def makes_usual_arrays(self) -> bool:
        # FakeTensorMode, for example, rejects tensors made outside; those made in inference mode cannot be trained.
        return not _mode_count() and not torch.is_inference_mode_enabled()

    def copier(self, description: Any, view: NDArray[np.uint8]) -> Callable[[], object]:
        single = type(description) is tuple
        leaves, form = ([description], False) if single else description
        arrays = [array_in(view, leaf) for leaf in leaves]

        def copy() -> object:
            if _mode_count():
                return None
            tensors = [tensor_of(array.copy(), dtype) for array, dtype in arrays]
            return tensors[0] if single else _formed(tensors, form)

        return copy

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
        if shared_seed is None:
            return dataset
        from feedline.frameworks.torch_pipes import seed_pipe

        return seed_pipe(dataset, shared_seed)

    def worker_info_was_read(self) -> bool:
        return _thread.worker_info_was_read

    def reset_worker_info_read(self) -> None:
        _thread.worker_info_was_read = False
