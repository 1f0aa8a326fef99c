"""Transforms whose window may reach beyond the image: pad, and crop at random."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_fill, checked_size
from feedline.images.steps.geometric import PADDINGS, Window
from feedline.images.transform import Rank
from feedline.images.transforms.warping import Color
from feedline.randomness.scope import rng

Sides = int | Sequence[int]


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

    rank = Rank.STEP

    def __init__(self, padding: Sides, fill: Color = 0, padding_mode: str = "constant") -> None:
        self.padding = _sides(padding)
        self.fill = checked_fill(fill)
        self.padding_mode = _mode(padding_mode)

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

    rank = Rank.STEP

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
        self.padding_mode = _mode(padding_mode)

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


def _mode(padding_mode: str) -> str:
    if padding_mode not in PADDINGS:
        raise BadOption(f"padding_mode={padding_mode!r} is not one of {', '.join(map(repr, PADDINGS))}.")
    return padding_mode
