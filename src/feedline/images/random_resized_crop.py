"""A part of the image at random."""

from __future__ import annotations

import math

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View, checked_numbers, checked_size
from feedline.randomness.scope import rng

_TRIES = 10


class RandomResizedCrop(ImageTransform):
    """Cut a part of random size, shape and place out of an image, and resize it.

    The distribution is that of torchvision's: ten tries to find a part that fits, then a central one.

    Args:
        size: of the result: the side of a square, or height and width.
        scale: the least and the greatest share of the image's area.
        ratio: the least and the greatest width over height.

    Example:
        >>> import numpy as np
        >>> RandomResizedCrop(8)(np.zeros((30, 40, 3), np.uint8)).shape
        (8, 8, 3)
    """

    rank = Rank.GEOMETRY
    resizes = True

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self.size = checked_size(size)
        self.scale = checked_numbers("scale", scale, 2)
        self.ratio = checked_numbers("ratio", ratio, 2)
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise BadOption(f"{name}={(low, high)} is no range of numbers above 0, with the lower one first.")

    def draw(self, view: View) -> None:
        view.crop(*self._part(view.width, view.height))
        view.resize(self.size[1], self.size[0])

    def _part(self, width: int, height: int) -> tuple[int, int, int, int]:
        random = rng().random
        (least, most), (narrow, wide) = self.scale, self.ratio
        for _ in range(_TRIES):
            area = width * height * (least + (most - least) * random())
            shape = math.exp(math.log(narrow) + math.log(wide / narrow) * random())
            across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < across <= width and 0 < down <= height:
                return int(random() * (width - across + 1)), int(random() * (height - down + 1)), across, down
        across, down = width, height
        if width / height < narrow:
            down = min(height, max(1, round(width / narrow)))
        elif width / height > wide:
            across = min(width, max(1, round(height * wide)))
        return (width - across) // 2, (height - down) // 2, across, down
