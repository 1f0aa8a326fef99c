"""Transforms that rotate, move, scale and shear an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.images.steps.geometric import INTERPOLATIONS, Fill, Warp
from feedline.images.steps.step import Matrix
from feedline.images.transforms.geometry import Color, checked_fill
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_number, checked_numbers, checked_range

Point = tuple[float, ...]


class RandomRotation(ImageTransform):
    """Rotate an image by a random angle, counterclockwise.

    Args:
        degrees: minimum and maximum of the angle; a number x stands for -x to x.
        interpolation: "nearest" or "bilinear".
        expand: True to enlarge the result so that all of the image is visible. Sizes then differ: put a crop or
            `Resize((height, width))` after it.
        center: the point to rotate about, as x and y in pixels; None for the centre.
        fill: the value of what lies outside of the image, or one for each channel.

    Example:
        >>> import numpy as np
        >>> RandomRotation((90, 90))(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))[:, :, 0].tolist()
        [[3, 9], [0, 6]]
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Color = 0,
    ) -> None:
        self.degrees = _angles("degrees", degrees)
        self.interpolation = checked_interpolation(interpolation)
        self.expand = bool(expand)
        self.center = None if center is None else checked_numbers("center", center, 2)
        self.fill = checked_fill(fill)

    def draw(self, view: View) -> None:
        low, high = self.degrees
        rotate(view, low + (high - low) * rng().random(), self.interpolation, self.fill, self.center, self.expand)


class RandomAffine(ImageTransform):
    """Rotate, move, scale and shear an image at random, about its centre.

    Args:
        degrees: minimum and maximum of the clockwise rotation; a number x stands for -x to x.
        translate: maximum shift across and down, as shares of width and height; None for no shift.
        scale: minimum and maximum of the factor; None for 1.
        shear: minimum and maximum of the angle to shear along x, in degrees, or four numbers for x and y. A number x
            stands for -x to x. None for no shear.
        interpolation: "nearest" or "bilinear".
        fill: the value of what lies outside of the image, or one for each channel.
        center: the point that stays, as x and y in pixels; None for the centre.

    Example:
        >>> import numpy as np
        >>> RandomAffine(0, translate=(0.5, 0.5))(np.ones((8, 8, 3), np.uint8)).shape
        (8, 8, 3)
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: str = "nearest",
        fill: Color = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees = _angles("degrees", degrees)
        self.translate = None if translate is None else checked_numbers("translate", translate, 2, low=0, high=1)
        self.scale = None if scale is None else checked_range("scale", scale, above=0)
        self.shear = None if shear is None else _shears(shear)
        self.interpolation = checked_interpolation(interpolation)
        self.fill = checked_fill(fill)
        self.center = None if center is None else checked_numbers("center", center, 2)

    def draw(self, view: View) -> None:
        random = rng().random
        angle = _between(self.degrees, random())
        move = (0, 0)
        if self.translate is not None:
            across, down = self.translate[0] * view.width, self.translate[1] * view.height
            move = round(across * (2 * random() - 1)), round(down * (2 * random() - 1))
        scale = 1.0 if self.scale is None else _between(self.scale, random())
        shear = [0.0, 0.0]
        if self.shear is not None:
            shear = [_between(self.shear[:2], random()), _between(self.shear[2:], random())]
        center = self.center or (view.width / 2, view.height / 2)
        matrix = affine(center, angle, scale, shear, move)
        view.add(Warp(matrix, view.width, view.height, self.interpolation, self.fill))


def rotate(
    view: View,
    angle: float,
    interpolation: str,
    fill: Fill,
    center: Point | None = None,
    expand: bool = False,
) -> None:
    """Rotate the current view counterclockwise, by degrees."""
    width, height = view.width, view.height
    matrix = affine(center or (width / 2, height / 2), -angle, 1.0, (0.0, 0.0), (0, 0))
    if expand:
        view.add(_expanded(matrix, width, height, interpolation, fill))
    elif angle % 360:
        view.add(Warp(matrix, width, height, interpolation, fill))


def affine(
    center: Sequence[float], angle: float, scale: float, shear: Sequence[float], move: Sequence[float]
) -> Matrix:
    """Return the map that shears, scales and rotates clockwise about a point, then moves. Angles are in degrees.

    Example:
        >>> [round(number, 6) for number in affine((0, 0), 90, 2, (0, 0), (5, 6))]
        [0.0, -2.0, 5.0, 2.0, 0.0, 6.0]
    """
    turn, along_x, along_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    across, down = math.cos(turn - along_y) / math.cos(along_y), math.sin(turn - along_y) / math.cos(along_y)
    a, b = scale * across, scale * (-across * math.tan(along_x) - math.sin(turn))
    d, e = scale * down, scale * (-down * math.tan(along_x) + math.cos(turn))
    x, y = center
    return (a, b, x + move[0] - a * x - b * y, d, e, y + move[1] - d * x - e * y)


def _expanded(matrix: Matrix, width: int, height: int, interpolation: str, fill: Fill) -> Warp:
    """Return the step with a result as large as the rotated image. The centres of both coincide."""
    a, b, _, d, e, _ = matrix
    new = []
    for x, y, length in ((a, b, width), (d, e, height)):
        reach = (abs(x) * width + abs(y) * height) / 2
        # Rounded, because an error in the last digit would add a row.
        low, high = (round(length / 2 + side, 4) for side in (-reach, reach))
        new.append(math.ceil(high) - math.floor(low))
    move_x, move_y = (new[0] - width) / 2, (new[1] - height) / 2
    moved = (a, b, matrix[2] + move_x, d, e, matrix[5] + move_y)
    return Warp(moved, new[0], new[1], interpolation, fill)


def _between(ends: Sequence[float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share


def _angles(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    if not isinstance(value, (int, float)):
        return checked_range(name, value)
    largest = checked_number(name, value, low=0)
    return -largest, largest


def _shears(value: float | Sequence[float]) -> tuple[float, ...]:
    if isinstance(value, Sequence) and len(value) == 4:
        return (*checked_range("shear", value[:2]), *checked_range("shear", value[2:]))
    return (*_angles("shear", value), 0.0, 0.0)


def checked_interpolation(interpolation: object) -> str:
    """Return `interpolation=`, which may be torchvision's enum.

    Raises:
        BadOption: it is none that steps know.
    """
    return checked_choice("interpolation", str(getattr(interpolation, "value", interpolation)), INTERPOLATIONS)
