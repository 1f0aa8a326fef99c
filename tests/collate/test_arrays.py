"""Arrays in the slot of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.abc import memory
from feedline.collate.arrays import arrays_named, framework_of, stack


class Room:
    """Memory of a task that records the requested sizes."""

    crosses = True
    has_space = True

    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.asked: list[int] = []

    def allocate(self, size: int) -> tuple[Any, int] | None:
        self.asked.append(size)
        return (self.buffer, 64) if size + 64 <= len(self.buffer) else None


@pytest.fixture
def room(request: pytest.FixtureRequest) -> Any:
    room = Room(getattr(request, "param", 1 << 10))
    memory.on_this_thread.memory = room
    yield room
    memory.on_this_thread.memory = None


def test_arrays_are_stacked_in_the_slot(room: Room) -> None:
    batch = stack([np.full((2, 3), number, np.float32) for number in range(4)])
    assert np.shares_memory(batch, room.buffer)
    assert room.asked == [4 * 2 * 3 * 4]
    assert batch[:, 0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("room", [100], indirect=True)
def test_arrays_without_room_in_the_slot_use_ordinary_memory(room: Room) -> None:
    batch = stack([np.arange(10), np.arange(10)])
    assert not np.shares_memory(batch, room.buffer)
    assert batch.tolist() == [list(range(10))] * 2


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_arrays_that_torch_adopts_share_memory(kind: Any) -> None:
    array = np.arange(3)
    assert np.shares_memory(arrays_named("torch").adopt(kind(array)).numpy(), array)
    assert np.shares_memory(arrays_named("numpy").adopt(kind(array)), array)


def test_the_framework_of_samples() -> None:
    assert framework_of([]) == "numpy"
    assert framework_of([None, {"a": [(0, torch.ones(1))]}]) == "torch"
    assert framework_of([{"a": np.ones(1)}, {"a": torch.ones(1)}]) == "numpy"
