"""Sequences of steps: on the CPU for one image, on a device for a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from feedline.images.steps.step import GeometricStep, Pixels, Step
from feedline.images.steps.tables import Lookup, MeasuredTable, Table, composed, looked_up

if TYPE_CHECKING:
    from torch import Tensor


def apply_steps(pixels: Pixels, steps: Sequence[Step]) -> Pixels:
    """Return an image after all steps."""
    pixels, table = apply_to_last_table(pixels, steps)
    return pixels if table is None else looked_up(pixels, table)


def apply_to_last_table(pixels: Pixels, steps: Sequence[Step]) -> tuple[Pixels, Table | None]:
    """Return an image after its steps, and the table of the last ones, which is still to be applied; None for none."""
    table: Table | None = None
    for step in steps:
        if isinstance(step, Lookup):
            table = composed(table, step.table())
            continue
        if table is not None:
            pixels, table = looked_up(pixels, table), None
        if isinstance(step, MeasuredTable):
            table = step.table(pixels)
        else:
            pixels = step.apply(pixels)
    return pixels, table


def moving_steps(steps: Sequence[Step]) -> int:
    """Return how many steps there are up to the last one that moves pixels."""
    return max((place + 1 for place, step in enumerate(steps) if isinstance(step, GeometricStep)), default=0)


def apply_steps_to_batch(images: Sequence[Tensor], rows: Sequence[Sequence[Step]]) -> list[Tensor]:
    """Return the images of a batch after the steps of each, on their device.

    The first steps of all images are done before the second ones; those of one kind are done together.

    Args:
        images: float32 with whole numbers from 0 to 255, and the axes color, height, width.
        rows: the steps of each image.
    """
    import torch

    made = list(images)
    for place in range(max(map(len, rows), default=0)):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for row, steps in enumerate(rows):
            if place < len(steps):
                groups[type(steps[place]), steps[place].group, made[row].shape].append(row)
        for chosen in groups.values():
            alike = [rows[row][place] for row in chosen]
            changed = type(alike[0]).apply_batch(alike, torch.stack([made[row] for row in chosen]))
            for row, image in zip(chosen, changed, strict=True):
                made[row] = image
    return made
