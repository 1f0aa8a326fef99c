"""Tensors in the slot of the current task."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.abc import memory

_NAMES = "float32 float64 float16 int64 int32 int16 int8 uint8 bool complex64 complex128"
AS_NUMPY = {getattr(torch, name): np.dtype(name) for name in _NAMES.split()}
"""The types that NumPy also has. Making a view through NumPy takes half the time of making it with torch."""


def numpy_type(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return NumPy's type for the same bytes: for a type that NumPy lacks, integers of its size."""
    return AS_NUMPY.get(dtype) or np.dtype(f"i{dtype.itemsize}")


def slot_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """Return an uninitialised tensor in the slot of the current task, or None if there is no slot or no space in it."""
    current = memory.announced.to_write
    size = math.prod(shape) * dtype.itemsize
    place = None if current is None or size == 0 else current.allocate(size)
    return None if place is None else tensor_of(np.ndarray(shape, numpy_type(dtype), *place), dtype)


def tensor_of(array: NDArray[np.generic], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor that keeps its memory alive, even if torch replaces the memory of its storage.

    `share_memory_()`, and sending a tensor through a queue, replace the memory of a storage and free the old one,
    although `tensor.numpy()` and other views still refer to it. So the storage itself holds the array it was made from:
    behind every such view is a tensor that holds the storage. Test: tests/frameworks/test_torch_memory.py

    Args:
        array: the memory.
        dtype: the type of the tensor, if it is one that NumPy lacks.
    """
    tensor = torch.from_numpy(array)
    tensor.untyped_storage()._feedline_memory = array  # type: ignore[attr-defined]
    return tensor if dtype is None or dtype in AS_NUMPY else tensor.view(dtype)
