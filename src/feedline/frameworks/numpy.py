"""NumPy: the framework of `feedline.Loader`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import memory
from feedline.abc.framework import Gather, Reducer
from feedline.types import WorkerIdentity, WorkerSpec


class NumpyFramework:
    """Arrays in, arrays out; torch is never imported."""

    name = "numpy"

    def gather_for(self, dataset: Any, collate: Callable[[Any], Any]) -> Gather | None:
        gather = getattr(dataset, "gather", None)
        return gather if callable(gather) and getattr(collate, "is_default", False) else None

    def bind_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        bind = getattr(collate, "bound_to", None)
        return bind("numpy") if bind is not None else collate

    def reducers(self) -> dict[type, Reducer]:
        return {}  # NumPy's own pickling hands its buffers over already

    def open_worker(self, worker: WorkerIdentity, spec: WorkerSpec) -> Any:
        if not worker.threaded:  # threads share these generators with the training loop
            random.seed(worker.seed)
            np.random.seed(np.random.SeedSequence([worker.seed & (2**64 - 1), worker.id]).generate_state(4))
        return worker.dataset

    def reset_worker(self, dataset: Any, spec: WorkerSpec, shared_seed: int | None) -> Any:
        return dataset

    def prefers_lists(self) -> bool:
        return True


def stack(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Stack arrays of one shape, in the slot of the current task if there is room."""
    first = arrays[0]
    out = empty((len(arrays), *first.shape), first.dtype)
    if any(array.dtype != first.dtype for array in arrays):
        return np.stack(arrays)
    return np.stack(arrays, out=out)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an array to be filled, in the slot of the current task if there is room."""
    current = memory.current()
    if current is not None and not dtype.hasobject:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        place = current.allocate(size) if size else None
        if place is not None:
            buffer, offset = place
            return np.ndarray(shape, dtype, buffer=buffer, offset=offset)
    return np.empty(shape, dtype)
