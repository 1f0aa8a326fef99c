"""Tensors in the slot of the current task, and over memory that is not torch's, which lives while it is reachable."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.dlpack

from feedline.frameworks.torch_tensors import AS_NUMPY, slot_tensor, tensor_of
from tests.memory.tasks import slot, task_in


@pytest.mark.parametrize("dtype", [*AS_NUMPY, torch.bfloat16, torch.uint16, torch.float8_e5m2])
def test_a_tensor_of_any_type_in_the_slot(dtype: torch.dtype) -> None:
    for shape in ((2, 3, 4), ()):
        with task_in(slot()) as writer:
            tensor = slot_tensor(shape, dtype)
        assert tensor is not None
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
        assert tensor.is_contiguous()
        assert writer.offset_of(tensor.data_ptr(), tensor.nbytes) == 0


# -- how long the memory lives ---

SIZE = 1 << 16


def make() -> tuple[torch.Tensor, weakref.ref[Any]]:
    """Return a tensor of ones over an array, and a weak reference to the array."""
    array = np.zeros(SIZE, np.uint8)
    tensor = tensor_of(np.ndarray((SIZE // 4,), np.float32, array, 0))
    tensor.fill_(1)
    return tensor, weakref.ref(array)


REACHED: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "numpy of a view of another type": lambda tensor: tensor.view(torch.int32).numpy(),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "torch through dlpack": lambda tensor: torch.utils.dlpack.from_dlpack(tensor),
    "another tensor set to its storage": lambda tensor: (
        torch.empty(0).set_(tensor.untyped_storage(), 5, (10,), (1,)).numpy()
    ),
}


# What torch's `share_memory_` and its queues do with a tensor.
@pytest.mark.parametrize("reached", REACHED)
def test_a_view_does_not_change_when_the_storage_is_swapped(reached: str) -> None:
    swap = "share_memory_" if "numpy" in reached else "_share_fd_cpu_"
    tensor, lives = make()
    view = REACHED[reached](tensor)
    before = np.asarray(view).tobytes()
    getattr(tensor.untyped_storage(), swap)()
    assert tensor.is_shared()
    del tensor
    gc.collect()
    if reached != "torch through dlpack":  # it shares the storage, and was swapped with it
        assert lives() is not None, "the view needs it"
    assert np.asarray(view).tobytes() == before
    del view
    gc.collect()
    assert lives() is None, "nothing else holds it"


def test_copies_of_a_tensor_do_not_keep_its_memory() -> None:
    tensor, lives = make()
    file = io.BytesIO()
    torch.save(tensor[:10].clone(), file)
    assert len(file.getvalue()) < 4096
    copies = [copy.deepcopy(tensor), tensor.clone(), pickle.loads(pickle.dumps(tensor)), tensor + 0]
    del tensor
    gc.collect()
    assert lives() is None
    assert all(bool((other == 1).all()) for other in copies)
