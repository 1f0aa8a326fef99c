"""Transforms that change the visible part of an image: resize, crop, pad, flip."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.images.steps.geometric import PADDINGS, Flip, Window
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_count, checked_number, checked_numbers, checked_range

Color = float | Sequence[float] | None
Sides = int | Sequence[int]
TRIES = 10
"""Attempts of torchvision to find a random part that fits."""


class Resize(ImageTransform):
    """Resize an image, with antialiasing where it is reduced.

    Args:
        size: an integer for the shorter side, keeping the aspect ratio; or height and width.

    Example:
        >>> import numpy as np
        >>> Resize(8)(np.zeros((30, 45, 3), np.uint8)).shape
        (8, 12, 3)
    """

    adds_steps = False
    resizes = True

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = checked_size(size) if isinstance(size, (tuple, list)) else checked_count("size", size)

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

    adds_steps = False

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = checked_size(size)

    @property
    def _place(self) -> tuple[float, float]:
        """Share of the free room that is left of the crop, and above it."""
        return 0.5, 0.5

    def draw(self, view: View) -> None:
        height, width = self.size
        if height > view.height or width > view.width:
            raise BadOption(
                f"{type(self).__name__}({self.size}) cannot cut {height} x {width} pixels out of {view.height} x "
                f"{view.width} (height x width). Put Resize({max(self.size)}) or a larger one before it."
            )
        across, down = self._place
        left, top = round(across * (view.width - width)), round(down * (view.height - height))
        view.crop(left, top, width, height)


class CornerCrop(CenterCrop):
    """Crop a corner of an image: see `FiveCrop`.

    Args:
        size: the side of a square, or height and width.
        right: 1 for a corner on the right.
        bottom: 1 for a corner at the bottom.
    """

    def __init__(self, size: int | tuple[int, int], *, right: int, bottom: int) -> None:
        super().__init__(size)
        self.right, self.bottom = right, bottom

    @property
    def _place(self) -> tuple[float, float]:
        return self.right, self.bottom


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

    adds_steps = False
    resizes = True

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self.size = checked_size(size)
        self.scale = checked_range("scale", scale, above=0)
        self.ratio = checked_range("ratio", ratio, above=0)

    def draw(self, view: View) -> None:
        view.crop(*self._part(view.width, view.height))
        view.resize(self.size[1], self.size[0])

    def _part(self, width: int, height: int) -> tuple[int, int, int, int]:
        random = rng().random
        (least, most), (narrow, wide) = self.scale, self.ratio
        for _ in range(TRIES):
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

    adds_steps = False
    is_late = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_number("p", p, low=0, high=1)

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

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_number("p", p, low=0, high=1)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.add(Flip(vertical=True))


class Pad(ImageTransform):
    """Pad an image.

    Args:
        padding: pixels to add on all sides; or left and right, and above and below; or left, above, right and below.
        fill: the value to pad with, or one for each channel.
        padding_mode: "constant" for `fill`, "edge" to repeat the outermost pixels, "reflect" to mirror the image
            without repeating them, "symmetric" to mirror it with them.

    Example:
        >>> import numpy as np
        >>> Pad((1, 0), padding_mode="edge")(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))[:, :, 0].tolist()
        [[0, 0, 3, 3]]
    """

    def __init__(self, padding: Sides, fill: Color = 0, padding_mode: str = "constant") -> None:
        self.padding = _sides(padding)
        self.fill = checked_fill(fill)
        self.padding_mode = checked_choice("padding_mode", padding_mode, PADDINGS)

    def draw(self, view: View) -> None:
        left, top, right, bottom = self.padding
        width, height = view.width + left + right, view.height + top + bottom
        view.add(Window(-left, -top, width, height, self.padding_mode, self.fill))


class RandomCrop(ImageTransform):
    """Crop a part at a random position out of an image, which may be padded before.

    Args:
        size: of the result: the side of a square, or height and width.
        padding: see `Pad`; None for none.
        pad_if_needed: True to pad images that are too small.
        fill: the value to pad with, or one for each channel.
        padding_mode: see `Pad`.

    Example:
        >>> import numpy as np
        >>> RandomCrop(32, padding=4)(np.zeros((32, 32, 3), np.uint8)).shape
        (32, 32, 3)
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        padding: Sides | None = None,
        pad_if_needed: bool = False,
        fill: Color = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = checked_size(size)
        self.padding = None if padding is None else _sides(padding)
        self.pad_if_needed = bool(pad_if_needed)
        self.fill = checked_fill(fill)
        self.padding_mode = checked_choice("padding_mode", padding_mode, PADDINGS)

    def draw(self, view: View) -> None:
        height, width = self.size
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        across, down = view.width + left + right, view.height + top + bottom
        if self.pad_if_needed:  # torchvision pads by what is missing on both sides
            x, y = max(0, width - across), max(0, height - down)
            left, top, across, down = left + x, top + y, across + 2 * x, down + 2 * y
        if across < width or down < height:
            raise BadOption(
                f"RandomCrop({self.size}) cannot cut {height} x {width} pixels out of {down} x {across} "
                "(height x width). Use pad_if_needed=True, or put a Resize before it."
            )
        random = rng().random
        left = int(random() * (across - width + 1)) - left
        top = int(random() * (down - height + 1)) - top
        if left >= 0 and top >= 0 and left + width <= view.width and top + height <= view.height:
            view.crop(left, top, width, height)
        else:
            view.add(Window(left, top, width, height, self.padding_mode, self.fill))


def _sides(padding: object) -> tuple[int, ...]:
    """Return the pixels to add left, above, right and below."""
    sides = (padding,) if isinstance(padding, int) else tuple(padding) if isinstance(padding, (tuple, list)) else ()
    if len(sides) not in (1, 2, 4) or not all(type(side) is int and side >= 0 for side in sides):
        raise BadOption(f"padding={padding!r} is not a number of pixels from 0, or two or four of them.")
    return sides * (4 // len(sides))


def checked_size(size: object) -> tuple[int, int]:
    """Return `size=` as height and width.

    Raises:
        BadOption: it is not a size.
    """
    height, width = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
    try:
        return checked_count("size", height), checked_count("size", width)
    except BadOption:
        raise BadOption(
            f"size={size!r} is not a size. Pass the side of a square, or a tuple of height and width."
        ) from None


def checked_fill(fill: object) -> tuple[float, ...]:
    """Return `fill=` as the values of the three channels.

    Raises:
        BadOption: these are not values from 0 to 255.
    """
    values = (fill or 0,) * 3 if fill is None or isinstance(fill, (int, float)) else fill
    return checked_numbers("fill", values, 3, low=0, high=255)
