"""Transforms that change the colours of an image, or blur it."""

from __future__ import annotations

from collections.abc import Callable

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_numbers, checked_probability, checked_range
from feedline.images.steps.colors import Hue, Saturation
from feedline.images.steps.filters import Blur
from feedline.images.steps.step import Step
from feedline.images.steps.tables import Contrast, brightness, solarize
from feedline.images.transform import Rank
from feedline.randomness.scope import rng

Range = float | tuple[float, float]

_CHANGES: tuple[tuple[Callable[[float], Step], float], ...] = (
    (brightness, 1.0),
    (Contrast, 1.0),
    (Saturation, 1.0),
    (Hue, 0.0),
)
"""The changes of `ColorJitter`, each with the factor that changes nothing."""


class ColorJitter(ImageTransform):
    """Change the colours of an image at random, with the same distribution as torchvision.

    The four changes are applied in random order. A number x stands for factors from 1 - x to 1 + x, and for hue from -x
    to x; a tuple is the range itself.

    Args:
        brightness: factor for all values.
        contrast: factor for the distance from the mean grey of the image.
        saturation: factor for the distance from grey.
        hue: amount to add to the hue, which ranges from 0 to 1: at most 0.5.

    Example:
        >>> import numpy as np
        >>> ColorJitter(brightness=(2, 2))(np.full((1, 1, 3), 100, np.uint8)).tolist()
        [[[200, 200, 200]]]
    """

    rank = Rank.STEP

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
        for place in order.tolist():
            change, neutral = _CHANGES[place]
            if factors[place] != neutral:
                view.add(change(factors[place]))


def _checked(name: str, value: object, neutral: float) -> tuple[float, float]:
    if isinstance(value, (int, float)):
        if value < 0:
            raise BadOption(f"{name}={value!r} is below 0.")
        value = (neutral - value, neutral + value)
        if neutral:
            value = (max(0.0, value[0]), value[1])
    low, high = checked_numbers(name, value, 2)
    least, most = (0.0, float("inf")) if neutral else (-0.5, 0.5)
    if not least <= low <= high <= most:
        raise BadOption(f"{name}={value!r} is not a range within {least} to {most}. Put the lower number first.")
    return low, high


class RandomGrayscale(ImageTransform):
    """Make some images grey. They keep three channels.

    Args:
        p: the probability.

    Example:
        >>> import numpy as np
        >>> RandomGrayscale(1.0)(np.array([[[255, 0, 0]]], np.uint8)).tolist()
        [[[76, 76, 76]]]
    """

    rank = Rank.STEP

    def __init__(self, p: float = 0.1) -> None:
        self.p = checked_probability(p)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.add(Saturation(0.0))


class RandomSolarize(ImageTransform):
    """Invert the values of some images from a threshold on.

    Args:
        threshold: the smallest value to invert, from 0 to 255.
        p: the probability.

    Example:
        >>> import numpy as np
        >>> RandomSolarize(128, 1.0)(np.array([[[100, 128, 255]]], np.uint8)).tolist()
        [[[100, 127, 0]]]
    """

    rank = Rank.STEP

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        if not 0 <= threshold <= 255:
            raise BadOption(f"threshold={threshold!r} is not a value from 0 to 255.")
        self.threshold = threshold
        self.p = checked_probability(p)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.add(solarize(self.threshold))


class GaussianBlur(ImageTransform):
    """Blur an image, with a sigma drawn at random.

    Args:
        kernel_size: the number of pixels that a result is computed from in each direction, odd; or that across and that
            down.
        sigma: minimum and maximum of the standard deviation in pixels; or the number itself.

    Example:
        >>> import numpy as np
        >>> dot = np.zeros((5, 5, 3), np.uint8)
        >>> dot[2, 2] = 255
        >>> GaussianBlur(3, sigma=1.0)(dot)[:, :, 0].tolist()[2]
        [0, 32, 52, 32, 0]
    """

    rank = Rank.STEP

    def __init__(self, kernel_size: int | tuple[int, int], sigma: float | tuple[float, float] = (0.1, 2.0)) -> None:
        both = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(both) != 2 or not all(type(one) is int and one > 0 and one % 2 for one in both):
            raise BadOption(f"kernel_size={kernel_size!r} is not an odd number above 0, or two of them.")
        self.kernel_size = both
        self.sigma = checked_range("sigma", (sigma, sigma) if isinstance(sigma, (int, float)) else sigma)
        if self.sigma[0] <= 0:
            raise BadOption(f"sigma={sigma!r} is not above 0.")

    def draw(self, view: View) -> None:
        low, high = self.sigma
        sigma = low + (high - low) * rng().random()
        view.add(Blur(*self.kernel_size, sigma, sigma))
