"""How the pixels of an image move, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedline.images.geometry import View
from feedline.images.steps.geometric import Flip
from feedline.images.steps.step import GeometricStep, Matrix, after

IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def parts_of(views: Sequence[View]) -> Iterator[tuple[Matrix, int, int]]:
    """Yield the map of each move, and width and height after it. What lies outside of them is lost.

    Args:
        views: what each stage of a pipeline shows of the image that it received.
    """
    for view in views:
        left, top, across, down = view.box
        width, height = view.cut_size
        x, y = width / across, height / down
        matrix: Matrix = (x, 0.0, -left * x, 0.0, y, -top * y)
        yield after(matrix, Flip().matrix(width, height)) if view.flip else matrix, width, height
        for step in view.steps:
            if isinstance(step, GeometricStep):
                matrix = step.matrix(width, height)
                width, height = step.size(width, height)
                yield matrix, width, height
