"""Datasets that consist only of tensors: make a whole batch in one vectorised step.

Only exact types are recognised: a subclass may define samples differently. The result equals fetching sample by sample
and collating, bit for bit. Test: tests/frameworks/test_torch_gather.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from feedline.abc.framework import Gather
from feedline.abc.source import Columnar, ColumnSource, Selection, checking
from feedline.frameworks.torch_collate import registrations_untouched
from feedline.frameworks.torch_memory import AS_NUMPY, slot_tensor, tensor_of

Indices = NDArray[np.int64]


Column = torch.Tensor | list[object]
"""The values of one field: a tensor with a row per sample, or a list of values for which torch has no tensor type."""

Form = tuple[str, ...] | str
"""How columns form a batch: the keys of a dict, "list", or "one" for a single column."""

Take = Callable[[Indices], "tuple[list[Column], Form] | None"]
"""Returns the columns of some samples, and their form; None if these samples have to be read one by one."""


def gather_for(dataset: object) -> Gather | None:
    """Return a function that makes the batch of some indices; None if `dataset` does not consist of tensors."""
    take = _take_from(dataset)
    return None if take is None else _Gather(take, dataset.tensors if type(dataset) is TensorDataset else None)


class _Gather:
    """Makes batches from the columns that `take` returns."""

    def __init__(self, take: Take, tensors: tuple[torch.Tensor, ...] | None) -> None:
        self._take = take
        self.quick = getattr(take, "quick", None)
        """See `feedline.abc.framework.Gather`."""
        self._tensors = tensors
        self._forms = _forms_of(tensors or ())

    def is_current(self, dataset: Any) -> bool:
        """True if a new function for the same dataset would be the same."""
        if self._tensors is None or dataset.tensors is not self._tensors or not registrations_untouched():
            return False
        return _forms_of(self._tensors) == self._forms

    def __call__(self, indices: Indices) -> object:
        taken = self._take(indices)
        if taken is None:
            return None
        columns, form = taken
        if form == "list":  # of samples that are tuples: torch zips them, so strings come as a tuple
            return [tuple(column) if type(column) is list else column for column in columns]
        return _batch_of(columns, form)


def _forms_of(tensors: tuple[torch.Tensor, ...]) -> list[object]:
    """Return what may change of tensors in place, and matters here."""
    return [(tensor.data_ptr(), tensor.shape, tensor.requires_grad) for tensor in tensors]


def _batch_of(columns: Sequence[Column], form: Form) -> object:
    return columns[0] if form == "one" else dict(zip(form, columns, strict=True))


def _take_from(dataset: Any, *, only_tensors: bool = False) -> Take | None:
    """Return how to take samples; with `only_tensors`, only if tensors or arrays hold all of them."""
    kind = type(dataset)
    if kind is TensorDataset:
        return _from_tensors(list(dataset.tensors), "list")
    if kind is torch.Tensor and dataset.dim() > 0:
        return _from_tensors([dataset], "one")
    if kind is np.ndarray and dataset.ndim > 1:
        return _from_column_table(dataset)
    if kind is Subset or isinstance(dataset, Selection):
        return _from_selection(dataset, only_tensors=only_tensors)
    if kind is ConcatDataset:
        return _from_parts(dataset)
    if isinstance(dataset, ColumnSource):
        return None if only_tensors else _from_columns(dataset.read_columns)
    if "datasets" in sys.modules:
        from feedline.frameworks.hugging_face import columns_of

        if (table := columns_of(dataset)) is not None:
            return None if only_tensors else _from_columns(table[1])
    return checking(dataset, _from_column_table(dataset.columns())) if isinstance(dataset, Columnar) else None


def _from_columns(read: Gather) -> Take:
    def take(indices: Indices) -> tuple[list[Column], Form] | None:
        found = read(indices)
        if found is None:
            return None
        values = list(found.values()) if isinstance(found, dict) else found if isinstance(found, tuple) else [found]
        columns: list[Column] = []
        for value in values:
            column = _adopted(value)
            if column is None:
                return None
            columns.append(column)
        return columns, tuple(found) if isinstance(found, dict) else "list" if isinstance(found, tuple) else "one"

    return take


# Any: an array, or a list of values for which torch has no tensor type.
def _adopted(value: Any) -> Column | None:
    """Convert an array with no other users into a tensor; None if torch has no such type. Lists stay unchanged."""
    if not isinstance(value, np.ndarray):
        kept: list[object] = value
        return kept
    try:
        return tensor_of(value if value.flags.writeable else value.copy())
    except TypeError:
        return None


def _from_tensors(tensors: list[torch.Tensor], form: Form) -> Take | None:
    for tensor in tensors:
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.requires_grad or tensor.is_quantized or tensor.dim() == 0:
            return None
        if tensor.is_conj() or tensor.is_neg():  # its memory holds other values
            return None
    count = min((len(tensor) for tensor in tensors), default=0)
    if count == 0:
        return None
    return _Tensors([_Column(tensor) for tensor in tensors], form)


class _Tensors:
    """Rows of tensors: a `Take`."""

    def __init__(self, columns: list[_Column], form: Form) -> None:
        self._columns = columns
        self._form = form
        arrays = [column.array for column in columns if column.array is not None]
        self._takes = [array.take for array in arrays]
        self._few = _LARGE_BYTES // max(column.row_bytes for column in columns) if len(arrays) == len(columns) else 0
        """For fewer samples than this, NumPy takes the rows, into new memory."""

    def __call__(self, indices: Indices) -> tuple[list[Column], Form]:
        if len(indices) < self._few:
            return [torch.from_numpy(take(indices, 0)) for take in self._takes], self._form
        return [column.take(indices) for column in self._columns], self._form

    def quick(self, indices: Indices) -> object:
        """See `feedline.abc.framework.Gather`."""
        if not 0 < len(indices) < self._few:
            return None
        try:
            columns = []
            for take in self._takes:  # not a comprehension, which would cost another call
                columns.append(_from_numpy(take(indices, 0)))
        except IndexError:
            return None
        return columns if self._form == "list" else _batch_of(columns, self._form)


_from_numpy = torch.from_numpy

_LARGE_BYTES = 64 << 10
"""From this size on, the memory that a batch is written to matters more than the call that writes it."""


class _Column:
    """Rows of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._count = len(tensor)
        self._row_shape = tuple(tensor.shape[1:])
        self.row_bytes = max(1, tensor[0].numel() * tensor.element_size())
        # For small batches, NumPy takes rows in half the time torch needs, but it has no bfloat16 and float8.
        array = tensor.numpy() if tensor.dtype in AS_NUMPY else None
        # NumPy would copy any other array as a whole before taking a row.
        self.array = array if array is not None and array.flags.c_contiguous and array.flags.aligned else None

    def take(self, indices: Indices) -> torch.Tensor:
        if self.array is not None and self.row_bytes * len(indices) < _LARGE_BYTES:
            return torch.from_numpy(self.array.take(indices, 0))
        if indices.min() < 0:
            indices = np.where(indices < 0, indices + self._count, indices)
        out = slot_tensor((len(indices), *self._row_shape), self._tensor)
        return torch.index_select(self._tensor, 0, torch.from_numpy(indices), out=out)


def _from_column_table(table: object) -> Take | None:
    """Take the columns of an `ArrayDataset`: one array, a tuple of them, or a mapping from names."""
    form = tuple(table) if isinstance(table, dict) else "list" if isinstance(table, tuple) else "one"
    arrays = list(table.values()) if isinstance(table, dict) else list(table) if isinstance(table, tuple) else [table]
    tensors = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            array = _as_tensor(array)
        if type(array) is not torch.Tensor:
            return None
        tensors.append(array)
    return _from_tensors(tensors, form)


def _as_tensor(array: NDArray[np.generic]) -> torch.Tensor | None:
    """Return an array as a tensor over the same memory; None if torch cannot (it may still support single rows).

    The tensor of a read-only array is writable, but must only be read.
    """
    if array.dtype.kind not in "biufc" or isinstance(array, np.ma.MaskedArray):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        try:
            return torch.as_tensor(array)
        except (TypeError, ValueError):  # a type, byte order or negative stride that torch does not have
            return None


def _from_selection(selection: Selection | Subset[object], *, only_tensors: bool) -> Take | None:
    inner = _take_from(selection.dataset, only_tensors=only_tensors)
    chosen = np.asarray(selection.indices)
    if inner is None or chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        return None
    take, chosen = inner, chosen.astype(np.int64, copy=False)
    return lambda indices: take(chosen[indices])


def _from_parts(dataset: ConcatDataset[object]) -> Take | None:
    """Take from several datasets of tensors. In other columns, a sample that is read alone may differ."""
    takes = [take for part in dataset.datasets if (take := _take_from(part, only_tensors=True)) is not None]
    if len(takes) < len(dataset.datasets):
        return None
    ends = np.asarray(dataset.cumulative_sizes, np.int64)
    starts = np.concatenate([[0], ends[:-1]])

    def take_parts(indices: Indices) -> tuple[list[Column], Form] | None:
        if indices.min() < 0:
            indices = np.where(indices < 0, indices + ends[-1], indices)
        owners = np.searchsorted(ends, indices, side="right")
        if owners.max() >= len(takes) or indices.min() < 0:
            raise IndexError(f"an index is out of range for a dataset of {ends[-1]} samples")
        present = np.unique(owners).tolist()
        places = [np.flatnonzero(owners == owner) for owner in present]
        taken = [takes[owner](indices[rows] - starts[owner]) for owner, rows in zip(present, places, strict=True)]
        return taken[0] if len(taken) == 1 else _joined([part for part in taken if part is not None], places)

    return take_parts


def _joined(taken: list[tuple[list[Column], Form]], places: list[Indices]) -> tuple[list[Column], Form] | None:
    """Combine the columns of several parts, each row in its place; None if the parts differ in structure or type."""
    if len(taken) < len(places) or any(form != taken[0][1] for _, form in taken):
        return None
    columns: list[Column] = []
    parts: tuple[Any, ...]  # tensors
    for parts in zip(*[part for part, _ in taken], strict=True):
        if len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
            return None
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        whole = slot_tensor(shape, parts[0])
        out = torch.empty(shape, dtype=parts[0].dtype) if whole is None else whole
        for part, rows in zip(parts, places, strict=True):
            out[torch.from_numpy(rows)] = part
        columns.append(out)
    return columns, taken[0][1]
