"""NumPy: the framework of `feedline.Loader`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from feedline.abc.framework import Framework, Gather
from feedline.frameworks.gathering import Read, reader_of
from feedline.frameworks.hugging_face import columns_of
from feedline.types import CollateFunction, WorkerIdentity


class NumpyFramework(Framework):
    """Arrays in, arrays out; torch is never imported."""

    name = "numpy"

    def gather_for(self, dataset: Any, collate: CollateFunction) -> Gather | None:
        return _reader(dataset) if self.is_default_collate(collate) else None

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> object:
        if not worker.threaded:  # threads share these generators with the training loop
            random.seed(worker.seed)
            np.random.seed(np.random.SeedSequence([worker.seed & (2**64 - 1), worker.id]).generate_state(4))
        return worker.dataset


def _reader(dataset: object) -> Read | None:
    if (found := columns_of(dataset)) is not None and found[0] == "torch":
        return None
    return reader_of(dataset, _reader)
