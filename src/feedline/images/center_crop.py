"""The middle of the image."""

from __future__ import annotations

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View, checked_size


class CenterCrop(ImageTransform):
    """Cut the middle out of an image. An image that is smaller is refused: put a `Resize` before.

    Args:
        size: the side of a square, or height and width.

    Example:
        >>> import numpy as np
        >>> CenterCrop(8)(np.zeros((30, 45, 3), np.uint8)).shape
        (8, 8, 3)
    """

    rank = Rank.GEOMETRY

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = checked_size(size)

    def draw(self, view: View) -> None:
        height, width = self.size
        if height > view.height or width > view.width:
            raise BadOption(
                f"CenterCrop({self.size}) cannot cut {height} x {width} pixels out of {view.height} x {view.width} "
                f"(height x width). Put Resize({max(self.size)}) or a larger one before it."
            )
        view.crop(round((view.width - width) / 2), round((view.height - height) / 2), width, height)
