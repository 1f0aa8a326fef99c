"""Transforms that change the visible part of an image: resize, crop, flip."""

from __future__ import annotations

import math

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_numbers, checked_probability, checked_size, is_integer
from feedline.images.steps.geometric import Flip
from feedline.images.transform import Rank
from feedline.randomness.scope import rng


class Resize(ImageTransform):
    """Resize an image, with antialiasing where it is reduced.

    Args:
        size: an integer for the shorter side, keeping the aspect ratio; or height and width.

    Example:
        >>> import numpy as np
        >>> Resize(8)(np.zeros((30, 45, 3), np.uint8)).shape
        (8, 12, 3)
    """

    rank = Rank.GEOMETRY
    resizes = True

    def __init__(self, size: int | tuple[int, int]) -> None:
        if not isinstance(size, (tuple, list)) and (not is_integer(size) or size < 1):
            raise BadOption(f"size={size!r} is not a length for the shorter side. Pass 1 or more.")
        self.size = checked_size(size) if isinstance(size, (tuple, list)) else int(size)

    def draw(self, view: View) -> None:
        if isinstance(self.size, tuple):
            view.resize(self.size[1], self.size[0])
        elif view.width <= view.height:
            view.resize(self.size, int(self.size * view.height / view.width))
        else:
            view.resize(int(self.size * view.width / view.height), self.size)


class CenterCrop(ImageTransform):
    """Crop the centre of an image. It rejects images that are smaller: put a `Resize` before it.

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
        across, down = _spare(self, self.size, view)
        view.crop(round(across / 2), round(down / 2), self.size[1], self.size[0])


class CornerCrop(ImageTransform):
    """Crop a corner of an image: see `FiveCrop`.

    Args:
        size: the side of a square, or height and width.
        right: 1 for a corner on the right.
        bottom: 1 for a corner at the bottom.
    """

    rank = Rank.GEOMETRY

    def __init__(self, size: int | tuple[int, int], *, right: int, bottom: int) -> None:
        self.size = checked_size(size)
        self.right, self.bottom = right, bottom

    def draw(self, view: View) -> None:
        across, down = _spare(self, self.size, view)
        view.crop(across * self.right, down * self.bottom, self.size[1], self.size[0])


def _spare(transform: ImageTransform, size: tuple[int, int], view: View) -> tuple[int, int]:
    """Return by how many pixels an image is wider and higher than a crop.

    Raises:
        BadOption: it is smaller.
    """
    height, width = size
    if height > view.height or width > view.width:
        raise BadOption(
            f"{type(transform).__name__}({size}) cannot cut {height} x {width} pixels out of {view.height} x "
            f"{view.width} (height x width). Put Resize({max(size)}) or a larger one before it."
        )
    return view.width - width, view.height - height


_TRIES = 10


class RandomResizedCrop(ImageTransform):
    """Crop a part of random size, shape and position out of an image, and resize it.

    The distribution is the same as in torchvision: ten attempts to find a part that fits, then a central one.

    Args:
        size: of the result: the side of a square, or height and width.
        scale: minimum and maximum share of the image's area.
        ratio: minimum and maximum ratio of width to height.

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
                raise BadOption(f"{name}={(low, high)} is not a range of numbers above 0. Put the lower one first.")

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


class HorizontalFlip(ImageTransform):
    """Flip some images horizontally.

    Args:
        p: the probability of a flip.

    Example:
        >>> import numpy as np
        >>> HorizontalFlip(1.0)(np.arange(6, dtype=np.uint8).reshape(1, 2, 3)).tolist()
        [[[3, 4, 5], [0, 1, 2]]]
    """

    rank = Rank.GEOMETRY
    is_late = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_probability(p)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.mirror()


class VerticalFlip(ImageTransform):
    """Flip some images vertically.

    Args:
        p: the probability of a flip.

    Example:
        >>> import numpy as np
        >>> VerticalFlip(1.0)(np.arange(6, dtype=np.uint8).reshape(2, 1, 3)).tolist()
        [[[3, 4, 5]], [[0, 1, 2]]]
    """

    rank = Rank.STEP

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_probability(p)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.add(Flip(vertical=True))
