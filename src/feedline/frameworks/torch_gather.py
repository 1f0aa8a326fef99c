"""Datasets that are nothing but tensors: a whole batch in one vectorised step.

Only exact types are recognised: a subclass may have its own idea of a sample. The result is the same as asking sample
by sample and collating, bit for bit. Test: tests/frameworks/test_torch_gather.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from feedline.abc.columnar import Columnar
from feedline.abc.framework import Gather
from feedline.frameworks.torch_memory import AS_NUMPY, room

Indices = NDArray[np.int64]


def gather_for(dataset: Any) -> Gather | None:
    """Return a function that makes the batch of some indices, or None if `dataset` is not just tensors."""
    columns = _columns_of(dataset)
    if columns is None:
        return None
    take, build = columns
    return lambda indices: build(take(indices))


Take = Callable[[Indices], list[torch.Tensor]]
Build = Callable[[list[torch.Tensor]], Any]


def _columns_of(dataset: Any) -> tuple[Take, Build] | None:
    kind = type(dataset)
    if kind is TensorDataset:
        return _from_tensors(list(dataset.tensors), _as_list)
    if kind is torch.Tensor and dataset.dim() > 0:
        return _from_tensors([dataset], _only)
    if kind is np.ndarray and dataset.ndim > 1:
        return _from_column_table(dataset)
    if kind is Subset:
        return _from_subset(dataset)
    if kind is ConcatDataset:
        return _from_parts(dataset)
    return _from_column_table(dataset.columns()) if isinstance(dataset, Columnar) else None


def _as_list(tensors: list[torch.Tensor]) -> Any:
    return tensors


def _only(tensors: list[torch.Tensor]) -> Any:
    return tensors[0]


def _from_tensors(tensors: list[torch.Tensor], build: Build) -> tuple[Take, Build] | None:
    for tensor in tensors:
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.requires_grad or tensor.is_quantized or tensor.dim() == 0:
            return None
        if tensor.is_conj() or tensor.is_neg():  # not what lies in memory
            return None
    count = min((len(tensor) for tensor in tensors), default=0)
    if count == 0:
        return None
    columns = [_Column(tensor) for tensor in tensors]
    return (lambda indices: [column.take(indices) for column in columns]), build


_LARGE_BYTES = 64 << 10
"""From here on the memory a batch is written to matters more than the call that writes it."""


class _Column:
    """Rows of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._count = len(tensor)
        self._row_shape = tuple(tensor.shape[1:])
        self._row_bytes = tensor[0].numel() * tensor.element_size()
        # NumPy takes rows in half the time torch needs for small batches, but has no bfloat16 and float8.
        self._array = tensor.numpy() if tensor.dtype in AS_NUMPY else None

    def take(self, indices: Indices) -> torch.Tensor:
        if self._array is not None and self._row_bytes * len(indices) < _LARGE_BYTES:
            return torch.from_numpy(self._array.take(indices, 0))
        if indices.min() < 0:
            indices = np.where(indices < 0, indices + self._count, indices)
        out = room((len(indices), *self._row_shape), self._tensor)
        return torch.index_select(self._tensor, 0, torch.from_numpy(indices), out=out)


def _from_column_table(table: Any) -> tuple[Take, Build] | None:
    """Take the columns of an `ArrayDataset`: one array, a tuple of them, or a mapping from names."""
    names = list(table) if isinstance(table, dict) else None
    arrays = list(table.values()) if isinstance(table, dict) else list(table) if isinstance(table, tuple) else [table]
    tensors = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            array = _as_tensor(array)
        if type(array) is not torch.Tensor:
            return None
        tensors.append(array)
    if names is not None:
        return _from_tensors(tensors, lambda columns: dict(zip(names, columns, strict=True)))
    return _from_tensors(tensors, _as_list if isinstance(table, tuple) else _only)


def _as_tensor(array: NDArray[Any]) -> torch.Tensor | None:
    """Return an array as a tensor of the same memory; None if torch cannot (its rows may still be possible)."""
    if array.dtype.kind not in "biufc" or not array.flags.writeable:
        return None
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError):  # a type, byte order or negative stride that torch does not have
        return None


def _from_subset(subset: Subset[Any]) -> tuple[Take, Build] | None:
    inner = _columns_of(subset.dataset)
    chosen = np.asarray(subset.indices)
    if inner is None or chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        return None
    take, build = inner
    chosen = chosen.astype(np.int64, copy=False)
    return (lambda indices: take(chosen[indices])), build


def _from_parts(dataset: ConcatDataset[Any]) -> tuple[Take, Build] | None:
    parts = [_columns_of(part) for part in dataset.datasets]
    if any(part is None for part in parts):
        return None
    takes, builds = zip(*[part for part in parts if part is not None], strict=True)
    if any(build is not builds[0] for build in builds):
        return None
    ends = np.asarray(dataset.cumulative_sizes, np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    probe = [take(np.zeros(1, np.int64)) for take in takes]
    if any(not _alike(columns, probe[0]) for columns in probe):
        return None

    def take_parts(indices: Indices) -> list[torch.Tensor]:
        if indices.min() < 0:
            indices = np.where(indices < 0, indices + ends[-1], indices)
        owners = np.searchsorted(ends, indices, side="right")
        if owners.max() >= len(takes) or indices.min() < 0:
            raise IndexError(f"an index is out of range for a dataset of {ends[-1]} samples")
        present = np.unique(owners)
        if len(present) == 1:
            owner = int(present[0])
            columns: list[torch.Tensor] = takes[owner](indices - starts[owner])
            return columns
        out = [torch.empty((len(indices), *column.shape[1:]), dtype=column.dtype) for column in probe[0]]
        for owner in present.tolist():
            rows = np.flatnonzero(owners == owner)
            for target, values in zip(out, takes[owner](indices[rows] - starts[owner]), strict=True):
                target[torch.from_numpy(rows)] = values
        return out

    return take_parts, builds[0]


def _alike(columns: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(columns) == len(others) and all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in zip(columns, others, strict=True)
    )
