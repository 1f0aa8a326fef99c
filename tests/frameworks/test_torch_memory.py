"""Tensors in the slot of the current task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline import memory
from feedline.frameworks.torch_memory import AS_NUMPY, room
from feedline.transport.codec import SlotWriter


def test_outside_a_task_there_is_no_room() -> None:
    assert room((2, 3), torch.ones(1)) is None


@pytest.mark.parametrize("dtype", [*AS_NUMPY, torch.bfloat16, torch.uint16, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), ()])
def test_a_tensor_of_any_type_in_the_slot(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    backing = np.zeros(4096, np.uint8)
    writer = SlotWriter(backing, backing.__array_interface__["data"][0])
    memory.set_current(writer)
    try:
        tensor = room(shape, torch.empty(1, dtype=dtype))
    finally:
        memory.set_current(None)
    assert tensor is not None
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
    assert tensor.is_contiguous()
    assert writer.offset_of(tensor.data_ptr(), tensor.nbytes) == 0


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2000,)])
def test_no_room_for_nothing_or_too_much(shape: tuple[int, ...]) -> None:
    memory.set_current(SlotWriter(np.zeros(4096, np.uint8), 0))
    try:
        assert room(shape, torch.ones(1)) is None
    finally:
        memory.set_current(None)


def test_types_have_the_same_size_on_both_sides() -> None:
    assert all(dtype.itemsize == numpy_type.itemsize for dtype, numpy_type in AS_NUMPY.items())
