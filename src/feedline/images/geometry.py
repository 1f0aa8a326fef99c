"""The visible region of an image, its size, and the steps that follow: numbers only, no pixels.

Every transform changes a `View`, given only the size of the image. So the result of a whole pipeline is known before a
pixel is decoded, and is the same wherever it is rendered.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np

from feedline.errors import BadOption
from feedline.images.finish import Finish
from feedline.images.steps.erasing import Erase
from feedline.images.steps.geometric import INTERPOLATIONS, Flip, Window
from feedline.images.steps.step import GeometricStep, Matrix, Step, after
from feedline.images.steps.tables import Lookup

Box = tuple[float, float, float, float]
"""Left, top, width and height, in pixels."""


class View:
    """The result of a pipeline for one image.

    Args:
        width: of the image.
        height: of the image.
    """

    __slots__ = (
        "_cut",
        "box",
        "channels_first",
        "dtype",
        "erasures",
        "flip",
        "height",
        "image_size",
        "mean",
        "std",
        "steps",
        "width",
    )

    def __init__(self, width: int, height: int) -> None:
        self.image_size = (width, height)
        """Width and height of the image."""
        self.box: Box = (0, 0, width, height)
        """The part of the image to crop."""
        self.width = width
        """Width of the result; likewise `height`."""
        self.height = height
        self.flip = False
        """True if the part is flipped horizontally, before any step."""
        self._cut: tuple[int, int] | None = None
        self.steps: list[Step] = []
        """What happens to the pixels after the crop, in this order."""
        self.erasures: list[Erase] = []
        """What is erased after normalising. For the attributes below, see `Finish`."""
        self.mean: tuple[float, ...] | None = None
        self.std: tuple[float, ...] | None = None
        self.dtype = "uint8"
        self.channels_first = False

    @property
    def cut_size(self) -> tuple[int, int]:
        """Width and height that the part is resized to, before any step."""
        return (self.width, self.height) if self._cut is None else self._cut

    def crop(self, left: int, top: int, width: int, height: int) -> None:
        """Keep only a part of the current view."""
        if self.steps:
            self.add(Window(left, top, width, height))
            return
        if self.flip:
            left = self.width - left - width
        x, y, box_width, box_height = self.box
        across, down = box_width / self.width, box_height / self.height
        self.box = (x + left * across, y + top * down, width * across, height * down)
        self.width, self.height = width, height

    def resize(self, width: int, height: int) -> None:
        """Show the same part with another number of pixels. `Compose` does not let steps come before."""
        assert not self.steps
        self.width, self.height = width, height

    def mirror(self) -> None:
        """Flip the current view horizontally."""
        self.erasures = [one.mirrored(self.width) for one in self.erasures]
        if all(step.is_symmetric for step in self.steps):
            self.flip = not self.flip
        else:
            self.add(Flip())

    def add(self, step: Step) -> None:
        """Add a step. Adjacent tables become one."""
        if self._cut is None:
            self._cut = self.width, self.height
        if isinstance(step, GeometricStep):
            self.width, self.height = step.size(self.width, self.height)
        last = self.steps[-1] if self.steps else None
        if isinstance(step, Lookup) and isinstance(last, Lookup):
            self.steps[-1] = last.then(step)
        else:
            self.steps.append(step)

    @property
    def matrix(self) -> Matrix:
        """The map from coordinates of the image to coordinates of the result."""
        left, top, across, down = self.box
        width, height = self.cut_size
        x, y = width / across, height / down
        matrix: Matrix = (x, 0.0, -left * x, 0.0, y, -top * y)
        if self.flip:
            matrix = after(matrix, Flip().matrix(width, height))
        for step in self.steps:
            if isinstance(step, GeometricStep):
                matrix = after(matrix, step.matrix(width, height))
                width, height = step.size(width, height)
        return matrix

    @property
    def factor(self) -> int:
        """The factor by which the image may be decoded smaller: 1, 2, 4 or 8."""
        width, height = self.cut_size
        least = min(self.box[2] / width, self.box[3] / height)
        return 8 if least >= 8 else 4 if least >= 4 else 2 if least >= 2 else 1

    def finish(self) -> Finish:
        """Return the final form of the image."""
        return Finish(self.height, self.width, self.mean, self.std, self.dtype, self.channels_first)


def checked_size(size: object) -> tuple[int, int]:
    """Return `size=` as height and width.

    Raises:
        BadOption: it is not a size.
    """
    both = (size, size) if is_integer(size) else tuple(size) if isinstance(size, (tuple, list)) else ()
    if len(both) != 2 or not all(is_integer(one) and one > 0 for one in both):
        raise BadOption(f"size={size!r} is not a size. Pass the side of a square, or a tuple of height and width.")
    return int(both[0]), int(both[1])


def is_integer(value: object) -> TypeGuard[int]:
    """True for integers, also of NumPy, but not for booleans."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


# Any: any value from the user.
def checked_numbers(name: str, value: Any, count: int) -> tuple[float, ...]:
    """Return an option that consists of several numbers.

    Raises:
        BadOption: it does not consist of `count` finite numbers.
    """
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise BadOption(f"{name}={value!r} does not consist of {count} numbers.")
    return numbers


def checked_range(name: str, value: object) -> tuple[float, float]:
    """Return an option that consists of a minimum and a maximum.

    Raises:
        BadOption: it does not consist of two numbers, or the first one is larger.
    """
    low, high = checked_numbers(name, value, 2)
    if not low <= high:
        raise BadOption(f"{name}={value!r} is not a range. Put the lower number first.")
    return low, high


def checked_probability(p: float) -> float:
    """Return `p=`.

    Raises:
        BadOption: it is not from 0 to 1.
    """
    if not 0 <= p <= 1:
        raise BadOption(f"p={p!r} is not a probability from 0 to 1.")
    return p


def checked_fill(fill: object) -> tuple[float, ...]:
    """Return `fill=` as the values of the three channels.

    Raises:
        BadOption: these are not values from 0 to 255.
    """
    values = (fill or 0,) * 3 if fill is None or isinstance(fill, (int, float)) else fill
    numbers = checked_numbers("fill", values, 3)
    if not all(0 <= one <= 255 for one in numbers):
        raise BadOption(f"fill={fill!r} is not a value from 0 to 255, or one for each channel.")
    return numbers


def checked_interpolation(interpolation: object) -> str:
    """Return `interpolation=`, which may be torchvision's enum.

    Raises:
        BadOption: it is none that steps know.
    """
    name = str(getattr(interpolation, "value", interpolation))
    if name not in INTERPOLATIONS:
        raise BadOption(f"interpolation={interpolation!r} is not one of {', '.join(map(repr, INTERPOLATIONS))}.")
    return name
