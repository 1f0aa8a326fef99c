"""Tensors in the slot of the current task."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.abc import memory

_NAMES = "float32 float64 float16 int64 int32 int16 int8 uint8 bool complex64 complex128"
AS_NUMPY = {getattr(torch, name): np.dtype(name) for name in _NAMES.split()}
"""The types that NumPy also has. Making a view through NumPy takes half the time of making it with torch."""


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


def tensor_of(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor that keeps its memory alive, even if torch replaces the memory of its storage.

    `share_memory_()`, and sending a tensor through a queue, replace the memory of a storage and free the old one,
    although `tensor.numpy()` and other views still refer to it. So the storage itself holds the array it was made from:
    behind every such view is a tensor that holds the storage. Test: tests/frameworks/test_torch_memory.py
    """
    tensor = torch.from_numpy(array)
    tensor.untyped_storage()._feedline_memory = array  # type: ignore[attr-defined]
    return tensor


def tensor_over(buffer: object, offset: int, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return a tensor of a type that NumPy lacks; otherwise like `tensor_of`."""
    tensor = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)
    tensor.untyped_storage()._feedline_memory = buffer  # type: ignore[attr-defined]
    return tensor
