"""Another size."""

from __future__ import annotations

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View, checked_size


class Resize(ImageTransform):
    """Resize an image, smoothed where it becomes smaller.

    Args:
        size: an integer for the shorter side, the other one follows from the image; or height and width.

    Example:
        >>> import numpy as np
        >>> Resize(8)(np.zeros((30, 45, 3), np.uint8)).shape
        (8, 12, 3)
    """

    rank = Rank.GEOMETRY
    resizes = True

    def __init__(self, size: int | tuple[int, int]) -> None:
        if isinstance(size, bool) or (isinstance(size, int) and size < 1):
            raise BadOption(f"size={size!r} is no length of the shorter side.")
        self.size = size if isinstance(size, int) else checked_size(size)

    def draw(self, view: View) -> None:
        if isinstance(self.size, tuple):
            view.resize(self.size[1], self.size[0])
        elif view.width <= view.height:
            view.resize(self.size, int(self.size * view.height / view.width))
        else:
            view.resize(int(self.size * view.width / view.height), self.size)
