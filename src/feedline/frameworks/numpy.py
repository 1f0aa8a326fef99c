"""NumPy: the framework of `feedline.Loader`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.framework import Gather, Reducer
from feedline.frameworks.gathering import Read, reader_of
from feedline.frameworks.hugging_face import columns_of
from feedline.types import CollateFunction, WorkerIdentity


class NumpyFramework:
    """Arrays in, arrays out; torch is never imported."""

    name = "numpy"
    has_worker_info = False

    def gather_for(self, dataset: Any, collate: CollateFunction) -> Gather | None:
        if not getattr(collate, "is_default", False):
            return None
        return _reader(dataset)

    def bind_collate(self, collate: CollateFunction) -> CollateFunction:
        bind = getattr(collate, "bound_to", None)
        if bind is None:
            return collate
        bound: CollateFunction = bind(self)
        return bound

    def is_default_collate(self, collate: CollateFunction) -> bool:
        return bool(getattr(collate, "is_default", False))

    def reducers(self) -> dict[type, Reducer]:
        return {}  # NumPy's own pickling already sends buffers out of band

    def describe(self, batch: object, writer: memory.Writer) -> object:
        return None

    def rebuild(self, description: object, reader: memory.Reader) -> object:
        raise NotImplementedError("NumPy batches are always pickled")

    def makes_usual_arrays(self) -> bool:
        return True

    def copier(self, description: object, view: NDArray[np.uint8]) -> Callable[[], object]:
        raise NotImplementedError("NumPy batches are always pickled")

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> object:
        if not worker.threaded:  # threads share these generators with the training loop
            random.seed(worker.seed)
            np.random.seed(np.random.SeedSequence([worker.seed & (2**64 - 1), worker.id]).generate_state(4))
        return worker.dataset

    def reset_worker(self, dataset: object, shared_seed: int | None) -> object:
        return dataset

    def worker_info_was_read(self) -> bool:
        return False  # there is nothing to query: a dataset that splits itself uses other means

    def reset_worker_info_read(self) -> None:
        pass


def _reader(dataset: object) -> Read | None:
    if (found := columns_of(dataset)) is not None and found[0] == "torch":
        return None
    return reader_of(dataset, _reader)
