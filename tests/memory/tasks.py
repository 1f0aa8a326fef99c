"""The memory that a task announces, as a worker does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from feedline.abc import memory
from feedline.memory.codec import MessageWriter, SlotWriter

M = TypeVar("M", bound=memory.Memory)


def slot(size: int = 1 << 16) -> SlotWriter:
    return SlotWriter(np.zeros(size, np.uint8))


def message(size: int = 1 << 14) -> MessageWriter:
    return MessageWriter(np.zeros(size, np.uint8))


@contextmanager
def task_in(current: M) -> Iterator[M]:
    """A task whose batch is made in `current`."""
    memory.on_this_thread.memory = current
    try:
        yield current
    finally:
        memory.on_this_thread.memory = None
