"""Tensors in the slot of the current task."""

from __future__ import annotations

import torch

from feedline import memory


def room(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor | None:
    """Return an uninitialised tensor in the slot of the current task, or None if there is no slot or no room."""
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
    flat = torch.frombuffer(buffer, dtype=like.dtype, count=count, offset=offset)
    return flat.view(shape) if len(shape) != 1 else flat
