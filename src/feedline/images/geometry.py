"""The visible region of an image, its size and its colours: numbers only, no pixels.

Every transform changes a `View`, given only the size of the image. So the result of a whole pipeline is known before a
pixel is decoded, and is the same wherever it is rendered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images.finish import Finish

Box = tuple[float, float, float, float]
"""Left, top, width and height, in pixels."""


class View:
    """The result of a pipeline for one image.

    Args:
        width: of the image.
        height: of the image.
    """

    __slots__ = ("box", "channels_first", "dtype", "flip", "height", "jitter", "mean", "std", "width")

    def __init__(self, width: int, height: int) -> None:
        self.box: Box = (0, 0, width, height)
        """The part of the image to crop."""
        self.width = width
        """Width of the result; likewise `height`."""
        self.height = height
        self.flip = False
        """True if the result is flipped horizontally."""
        self.jitter: NDArray[np.float32] | None = None
        """See `DeferredImage`; for the attributes below, see `Finish`."""
        self.mean: tuple[float, ...] | None = None
        self.std: tuple[float, ...] | None = None
        self.dtype = "uint8"
        self.channels_first = False

    def crop(self, left: int, top: int, width: int, height: int) -> None:
        """Keep only a part of the current view."""
        if self.flip:
            left = self.width - left - width
        x, y, box_width, box_height = self.box
        across, down = box_width / self.width, box_height / self.height
        self.box = (x + left * across, y + top * down, width * across, height * down)
        self.width, self.height = width, height

    def resize(self, width: int, height: int) -> None:
        """Show the same part with another number of pixels."""
        self.width, self.height = width, height

    @property
    def factor(self) -> int:
        """The factor by which the image may be decoded smaller: 1, 2, 4 or 8."""
        least = min(self.box[2] / self.width, self.box[3] / self.height)
        return 8 if least >= 8 else 4 if least >= 4 else 2 if least >= 2 else 1

    def finish(self) -> Finish:
        """Return the final form of the image."""
        return Finish(self.height, self.width, self.mean, self.std, self.dtype, self.channels_first)


# Any, below: any value from the user.
def checked_size(size: object) -> tuple[int, int]:
    """Return `size=` as height and width.

    Raises:
        BadOption: it is not a size.
    """
    both = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, (tuple, list)) else ()
    if len(both) != 2 or not all(type(one) is int and one > 0 for one in both):
        raise BadOption(f"size={size!r} is not a size. Pass the side of a square, or a tuple of height and width.")
    return both


def checked_numbers(name: str, value: Any, count: int) -> tuple[float, ...]:
    """Return an option that consists of several numbers.

    Raises:
        BadOption: it does not consist of `count` numbers.
    """
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != count:
        raise BadOption(f"{name}={value!r} does not consist of {count} numbers.")
    return numbers
