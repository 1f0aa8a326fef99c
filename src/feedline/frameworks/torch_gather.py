"""torch's datasets that consist only of tensors: make a whole batch in one vectorised step.

Only exact types are recognised: a subclass may define samples differently.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from feedline.abc.framework import Gather, Stale
from feedline.frameworks.gathering import Indices, Read, joined, reader_of, rows_of, selected
from feedline.frameworks.torch_collate import registrations_untouched
from feedline.frameworks.torch_tensors import AS_NUMPY, tensor_of

# Any, throughout: datasets and columns of any kind.


def gather_for(dataset: object) -> Gather | None:
    """Return a function that makes the batch of some indices; None if `dataset` does not consist of columns."""
    read = _reader(dataset)
    return None if read is None else _Gather(read, dataset.tensors if isinstance(dataset, TensorDataset) else None)


class _Gather:
    """Makes batches of tensors from the columns that `read` returns."""

    def __init__(self, read: Read, tensors: tuple[torch.Tensor, ...] | None) -> None:
        self._read = read
        self._tensors = tensors
        self._forms = _forms_of(tensors or ())
        read_quickly: Read | None = getattr(read, "quick", None)
        self.quick = None if read_quickly is None else functools.partial(_converted, read_quickly, torch.from_numpy)
        """See `feedline.abc.framework.Gather`."""

    def __call__(self, indices: Indices) -> object:
        return _converted(self._read, _adopted, indices)

    def is_current(self, dataset: Any) -> bool:
        """True if a new function for the same dataset would be the same."""
        if self._tensors is None or dataset.tensors is not self._tensors or not registrations_untouched():
            return False
        return _forms_of(self._tensors) == self._forms


def _forms_of(tensors: tuple[torch.Tensor, ...]) -> list[object]:
    """Return what may change of tensors in place, and matters here."""
    return [(tensor.data_ptr(), tensor.shape, tensor.requires_grad) for tensor in tensors]


def _converted(read: Read, convert: Callable[[NDArray[Any]], torch.Tensor], indices: Indices) -> object:
    try:
        return _of_tensors(read(indices), convert)
    except TypeError:  # torch has no such type
        return None


def _of_tensors(found: Any, convert: Callable[[NDArray[Any]], torch.Tensor]) -> object:
    """Return columns as torch collates them: as tensors, and those of a tuple in a list. Raises TypeError."""
    if isinstance(found, tuple):  # torch zips the samples, so strings come as a tuple
        return [convert(one) if type(one) is np.ndarray else tuple(one) if type(one) is list else one for one in found]
    if isinstance(found, dict):
        return {name: convert(one) if isinstance(one, np.ndarray) else one for name, one in found.items()}
    return convert(found) if isinstance(found, np.ndarray) else found


def _adopted(array: NDArray[Any]) -> torch.Tensor:
    return tensor_of(array if array.flags.writeable else array.copy())


def _reader(dataset: Any, *, only_arrays: bool = False) -> Read | None:
    kind = type(dataset)
    if kind is TensorDataset:
        return _rows_of(dataset)
    if kind is torch.Tensor:
        return rows_of(_as_array(dataset)) if dataset.dtype in AS_NUMPY else None
    if kind is Subset:
        return selected(dataset, lambda inner: _reader(inner, only_arrays=only_arrays))
    if kind is ConcatDataset:
        return _from_parts(dataset)
    return reader_of(dataset, lambda inner: _reader(inner, only_arrays=only_arrays), only_arrays=only_arrays)


def _rows_of(dataset: Any) -> Read | None:
    tensors = dataset.tensors
    rows = rows_of(tuple(map(_as_array, tensors)))
    dtypes = [tensor.dtype for tensor in tensors]
    if rows is None:
        return None

    def check_tensors(_: Indices) -> None:
        if dataset.tensors is not tensors:
            raise Stale

    rows.check = check_tensors
    if all(dtype in AS_NUMPY for dtype in dtypes):
        return rows

    def read(indices: Indices) -> tuple[torch.Tensor, ...]:
        return tuple([tensor_of(one, dtype) for one, dtype in zip(rows(indices), dtypes, strict=True)])

    return read


def _as_array(tensor: torch.Tensor) -> object:
    """Return a tensor as an array over the same memory, of integers if NumPy lacks its type; None if not plain."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.dtype in AS_NUMPY:
        return tensor.numpy()
    return tensor.view(getattr(torch, f"int{8 * tensor.itemsize}")).numpy()


def _from_parts(dataset: ConcatDataset[object]) -> Read | None:
    """Read from several datasets of arrays. In other columns, a sample that is read alone may differ."""
    datasets = list(dataset.datasets)
    reads = [read for part in datasets if (read := _reader(part, only_arrays=True)) is not None]
    if len(reads) < len(datasets):
        return None
    ends = np.asarray(dataset.cumulative_sizes, np.int64)
    starts = np.concatenate([[0], ends[:-1]])

    def read_parts(indices: Indices) -> Any:
        if len(datasets) != len(dataset.datasets) or not all(map(operator.is_, datasets, dataset.datasets)):
            raise Stale
        if indices.min() < 0:
            indices = np.where(indices < 0, indices + ends[-1], indices)
        owners = np.searchsorted(ends, indices, side="right")
        if owners.max() >= len(reads) or indices.min() < 0:
            raise IndexError(f"an index is out of range for a dataset of {ends[-1]} samples")
        present = np.unique(owners).tolist()
        places = [np.flatnonzero(owners == owner) for owner in present]
        parts = [reads[owner](indices[rows] - starts[owner]) for owner, rows in zip(present, places, strict=True)]
        return parts[0] if len(parts) == 1 else joined(parts, places)

    return read_parts
