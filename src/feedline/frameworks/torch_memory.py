"""Tensors in the slot of the current task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.abc import memory

_NAMES = "float32 float64 float16 int64 int32 int16 int8 uint8 bool complex64 complex128"
AS_NUMPY = {getattr(torch, name): np.dtype(name) for name in _NAMES.split()}
"""The types that NumPy knows as well. A view made through NumPy takes half the time of one made by torch."""


def slot_tensor(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor | None:
    """Return an uninitialised tensor in the slot of the current task, or None if there is no slot or no space in it."""
    current = memory.current()
    if current is None:
        return None
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        return None
    place = current.allocate(count * like.element_size())
    if place is None:
        return None
    buffer, offset = place
    dtype = AS_NUMPY.get(like.dtype)
    if dtype is not None:
        return tensor_of(np.ndarray(shape, dtype, buffer, offset))
    return tensor_over(buffer, offset, shape, like.dtype, count)


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over memory that it keeps alive, whatever becomes of it.

    `share_memory_()`, and sending a tensor through a queue, put other memory into a storage in the place of its own,
    which is freed, although `tensor.numpy()` and views that others have still show it. So the storage itself holds what
    it was made from: every such view has a tensor behind it that holds the storage.
    Test: tests/frameworks/test_torch_memory.py
    """
    tensor = torch.from_numpy(array)
    tensor.untyped_storage()._feedline_memory = array  # type: ignore[attr-defined]
    return tensor


def tensor_over(buffer: Any, offset: int, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return a tensor of a type that NumPy lacks; else as `tensor_of`."""
    tensor = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)
    tensor.untyped_storage()._feedline_memory = buffer  # type: ignore[attr-defined]
    return tensor
