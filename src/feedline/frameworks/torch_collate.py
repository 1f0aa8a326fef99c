"""torch's default collate function, writing into slots.

Same results, types and errors as torch's, bit for bit. What the program has put in the place of torch's functions
applies: registrations in `default_collate_fn_map`, and other functions called `collate` or `default_collate` in torch's
module, also if they were put there before feedline was imported.
Test: tests/frameworks/test_torch_collate.py
"""

from __future__ import annotations

import functools
from array import array as packed
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C import _len_torch_function_stack as _mode_count
from torch.utils.data._utils import collate as torch_collate

from feedline.abc import memory
from feedline.abc.deferred import DeferredField
from feedline.frameworks.gathering import keeps_format
from feedline.frameworks.torch_tensors import AS_NUMPY, slot_tensor, tensor_of
from feedline.types import CollateFunction

_tensor_collate: Any = torch_collate.collate_tensor_fn  # Any: it is called with the table of any version


def _is_torchs(function: object) -> bool:
    """True for a function of torch's own module; False for one that the program has put there."""
    return getattr(function, "__globals__", None) is vars(torch_collate)


def is_default(collate: CollateFunction) -> bool:
    """True for torch's default collate function and for `feedline.collate.default`, its equivalent here."""
    return getattr(collate, "is_default", False) or (collate is torch_collate.default_collate and _is_torchs(collate))


def collate_tensors(
    batch: tuple[torch.Tensor, ...] | list[torch.Tensor], *, collate_fn_map: object = None
) -> torch.Tensor:
    """Stack tensors as torch's own function does, but into the slot of the current task.

    Outside a task, this calls torch's function, which in a task would create a shared-memory file per tensor.
    """
    current = memory.on_this_thread.memory
    elem = batch[0]
    if current is None or not elem.is_cpu or elem.layout is not torch.strided or elem.is_nested:
        result: torch.Tensor = _tensor_collate(batch, collate_fn_map=collate_fn_map)
        return result
    # Without `out=`, torch keeps the memory format of samples that are channels-last, which need four dimensions.
    is_usual = elem.dim() < 4 or memory.is_row_major(elem.shape, elem.stride())
    if type(elem) is not torch.Tensor or elem.is_quantized or not (is_usual or current.crosses):
        return torch.stack(batch, 0)
    out = slot_tensor((len(batch), *elem.shape), elem.dtype) if current.has_space else None
    if out is None:
        stacked = torch.stack(batch, 0)
        is_plain = type(stacked) is torch.Tensor and stacked.dtype is elem.dtype and not stacked.requires_grad
        if (is_plain and is_usual) or not current.crosses:
            return stacked
        out = torch.empty_like(stacked, dtype=elem.dtype, memory_format=torch.contiguous_format)
    if current.crosses:  # with `out=`, as torch does in a worker: the result has the type of the first sample
        return torch.stack(batch, 0, out=out)
    # If the batch stays in its process, torch stacks without `out=`: it promotes types and keeps gradients.
    if elem.requires_grad or len({tensor.dtype for tensor in batch}) > 1:
        return torch.stack(batch, 0)
    try:
        return torch.stack(batch, 0, out=out)
    except RuntimeError:  # another requires grad; or the shapes differ, which raises again
        return torch.stack(batch, 0)


def install_collate() -> None:
    """Make every use of torch's `default_collate` in this process write into the current slot.

    A user's own registration for tensors stays in effect.
    """
    if torch_collate.default_collate_fn_map.get(torch.Tensor) is _tensor_collate:
        _known_registrations[torch.Tensor] = collate_tensors  # first: another thread may be comparing the two
        torch_collate.default_collate_fn_map[torch.Tensor] = collate_tensors


def _collate_deferred(batch: Sequence[DeferredField], *, collate_fn_map: object = None) -> object:
    return type(batch[0]).collate_torch(batch)


_known_collate = torch_collate.collate if _is_torchs(torch_collate.collate) else None
_known_registrations: dict[Any, Any] = {  # Any: as torch types its table
    **{kind: way for kind, way in torch_collate.default_collate_fn_map.items() if _is_torchs(way)},
    DeferredField: _collate_deferred,
}
torch_collate.default_collate_fn_map[DeferredField] = _collate_deferred


def registrations_untouched() -> bool:
    """True if only feedline has changed how torch collates."""
    return torch_collate.collate is _known_collate and torch_collate.default_collate_fn_map == _known_registrations


def default_collate(batch: object) -> Any:
    """Collate as torch's `default_collate` does, but faster for common types of samples."""
    if isinstance(batch, (list, tuple)) and registrations_untouched():
        return _collate_known(batch)
    return torch_collate.default_collate(batch)


def _collate_known(batch: Sequence[object]) -> object:
    return _OWN_WAYS.get(type(batch[0]), torch_collate.default_collate)(batch)


def _collate_sequences(batch: Sequence[object]) -> object:
    try:
        columns = list(zip(*batch, strict=True))
    except (TypeError, ValueError):  # they differ in size: torch raises the right error
        return torch_collate.default_collate(batch)
    return [_collate_known(column) for column in columns]


def _collate_dicts(batch: Sequence[dict[object, object]]) -> dict[object, object]:
    return {key: _collate_known([sample[key] for sample in batch]) for key in batch[0]}


def _collate_arrays(batch: Sequence[NDArray[np.generic]]) -> object:
    elem = batch[0]
    if elem.dtype.kind not in "biufc":
        return torch_collate.default_collate(batch)
    stacked = None if elem.flags.writeable else _stack_read_only(elem, batch)
    return collate_tensors([torch.as_tensor(array) for array in batch]) if stacked is None else stacked


def _stack_read_only(elem: NDArray[np.generic], batch: Sequence[NDArray[np.generic]]) -> torch.Tensor | None:
    """Stack read-only arrays, such as views of a mapped file; None if they are not all alike.

    Tensors of these arrays would be writable, so torch would warn about them, although a batch is a copy.
    """
    for array in batch:
        if type(array) is not np.ndarray or array.dtype != elem.dtype or array.shape != elem.shape:
            return None
    if elem.dtype not in AS_NUMPY.values() or keeps_format(elem):
        return None
    return tensor_of(np.stack(batch, out=memory.empty((len(batch), *elem.shape), elem.dtype)))


def _collate_numbers(code: str, dtype: torch.dtype, batch: Sequence[Any]) -> torch.Tensor:
    """Collate numbers as torch does, at a fifth of the cost; while a torch mode is active, let torch do it.

    Unlike torch, this accepts objects that are numbers only by their `__index__` or `__float__`.
    """
    try:
        values = None if _mode_count() else packed(code, batch)  # a default device is such a mode
    except (TypeError, ValueError, OverflowError):  # not only such numbers: torch promotes them or raises its error
        values = None
    if values is None:
        result: torch.Tensor = torch_collate.default_collate(batch)
        return result
    current = memory.on_this_thread.memory
    place = current.allocate(8 * len(values)) if current is not None else None
    if place is None:
        return torch.frombuffer(values, dtype=dtype)
    target: NDArray[np.generic] = np.ndarray(len(values), code, *place)
    target[:] = values
    return tensor_of(target)


def _collate_scalars(batch: Sequence[object]) -> torch.Tensor:
    """Collate NumPy scalars of one type as torch does, at a tenth of the cost."""
    kind = type(batch[0])
    if _mode_count() or {*map(type, batch)} != {kind}:  # torch promotes scalars of several types
        result: torch.Tensor = torch_collate.default_collate(batch)
        return result
    dtype = np.dtype(kind)
    column = memory.empty((len(batch),), dtype)
    column[:] = np.fromiter(batch, dtype, len(batch))
    return tensor_of(column)


_OWN_WAYS: dict[type, CollateFunction] = {
    torch.Tensor: collate_tensors,
    int: functools.partial(_collate_numbers, "q", torch.int64),
    float: functools.partial(_collate_numbers, "d", torch.float64),
    tuple: _collate_sequences,
    list: _collate_sequences,
    dict: _collate_dicts,
    np.ndarray: _collate_arrays,
    **{dtype.type: _collate_scalars for dtype in AS_NUMPY.values()},
}
"""Collate functions by the exact type of the first sample; torch collates all other types."""
