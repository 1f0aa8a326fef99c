"""NumPy: the framework of `feedline.Loader`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.framework import Gather, Reducer
from feedline.abc.source import Columnar, ColumnSource, Selection, checking
from feedline.frameworks.hugging_face import columns_of
from feedline.types import CollateFunction, WorkerIdentity


class NumpyFramework:
    """Arrays in, arrays out; torch is never imported."""

    name = "numpy"
    has_worker_info = False

    def gather_for(self, dataset: Any, collate: CollateFunction) -> Gather | None:
        if not getattr(collate, "is_default", False):
            return None
        if isinstance(dataset, Selection):
            gather, chosen = self.gather_for(dataset.dataset, collate), dataset.indices
            return None if gather is None else lambda indices: gather(chosen[indices])
        if isinstance(dataset, ColumnSource):
            return dataset.read_columns
        if (found := columns_of(dataset)) is not None:
            return None if found[0] == "torch" else found[1]
        table = dataset.columns() if isinstance(dataset, Columnar) else None
        return None if table is None else checking(dataset, _gather(table))

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


Indices = NDArray[np.int64]


def _gather(table: object) -> Gather | None:
    """Return a function that takes rows of arrays; None if an array's rows have to be collated one by one."""
    if isinstance(table, dict):
        columns = {name: _column(array) for name, array in table.items()}
        if any(column is None for column in columns.values()):
            return None
        return lambda indices: {name: _take(column, indices) for name, column in columns.items()}
    if isinstance(table, tuple):
        listed = [_column(array) for array in table]
        if any(column is None for column in listed):
            return None
        return lambda indices: tuple([_take(column, indices) for column in listed])
    single = _column(table)
    return None if single is None else lambda indices: _take(single, indices)


def _column(array: object) -> Any:
    try:
        column = np.asarray(array)
    except (TypeError, RuntimeError):  # a tensor that NumPy cannot express: collating its rows raises an error
        return None
    # Strings are collated into lists, objects by their type, and rows of a masked array have a mask.
    plain = column.dtype.kind in "biufcmM" and column.dtype.isnative and not isinstance(array, np.ma.MaskedArray)
    return column if plain else None


def _take(column: NDArray[np.generic], indices: Indices) -> NDArray[np.generic]:
    """Take rows, straight into the slot of the current task."""
    count = len(column)
    if len(indices) and not -count <= indices.min() <= indices.max() < count:
        wrong = indices.max() if indices.max() >= count else indices.min()
        raise IndexError(f"index {wrong} is out of range for a dataset of {count} samples")
    out = memory.empty((len(indices), *column.shape[1:]), column.dtype)
    if not (column.flags.c_contiguous and column.flags.aligned):
        out[...] = column[indices]  # `take` would copy the whole column first
        return out
    # After the check above, "wrap" only affects negative indices; "raise" would make a second copy.
    return column.take(indices, 0, out=out, mode="wrap")
