"""Brightness, contrast, saturation and hue at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View, checked_numbers
from feedline.randomness.scope import rng

Range = float | tuple[float, float]

_NEUTRAL = (1.0, 1.0, 1.0, 0.0)


class ColorJitter(ImageTransform):
    """Change the colours of an image at random; the distribution is that of torchvision's.

    The four changes come in random order. A number x stands for factors from 1 - x to 1 + x, for hue from -x to x; a
    tuple for the range itself.

    Args:
        brightness: factor of all values.
        contrast: factor of the distance from the mean of the image's grey.
        saturation: factor of the distance from grey.
        hue: what is added to the hue, which is from 0 to 1: at most 0.5.

    Example:
        >>> import numpy as np
        >>> ColorJitter(brightness=(2, 2))(np.full((1, 1, 3), 100, np.uint8)).tolist()
        [[[200, 200, 200]]]
    """

    rank = Rank.COLOR

    def __init__(self, brightness: Range = 0, contrast: Range = 0, saturation: Range = 0, hue: Range = 0) -> None:
        self.brightness = _checked("brightness", brightness, 1.0)
        self.contrast = _checked("contrast", contrast, 1.0)
        self.saturation = _checked("saturation", saturation, 1.0)
        self.hue = _checked("hue", hue, 0.0)

    def draw(self, view: View) -> None:
        generator = rng()
        order = generator.permutation(4)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [low if low == high else low + (high - low) * generator.random() for low, high in ranges]
        if tuple(factors) != _NEUTRAL:
            view.jitter = np.array([*factors, *order], np.float32)


def _checked(name: str, value: Any, neutral: float) -> tuple[float, float]:
    if isinstance(value, (int, float)):
        if value < 0:
            raise BadOption(f"{name}={value!r} is below 0.")
        value = (neutral - value, neutral + value)
        if neutral:
            value = (max(0.0, value[0]), value[1])
    low, high = checked_numbers(name, value, 2)
    least, most = (0.0, float("inf")) if neutral else (-0.5, 0.5)
    if not least <= low <= high <= most:
        raise BadOption(f"{name}={value!r} is no range from {least} to {most}, with the lower number first.")
    return low, high
