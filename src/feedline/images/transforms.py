"""Training transforms: resize, crop, flip, change colours, normalise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from feedline.errors import BadOption
from feedline.images.geometry import View, checked_numbers, checked_size
from feedline.images.steps.colors import Hue, Saturation
from feedline.images.steps.step import Step
from feedline.images.steps.tables import Contrast, brightness
from feedline.images.transform import ImageTransform, Rank
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
        if isinstance(size, bool) or (isinstance(size, int) and size < 1):
            raise BadOption(f"size={size!r} is not a length for the shorter side. Pass 1 or more.")
        self.size = size if isinstance(size, int) else checked_size(size)

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
        height, width = self.size
        if height > view.height or width > view.width:
            raise BadOption(
                f"CenterCrop({self.size}) cannot cut {height} x {width} pixels out of {view.height} x {view.width} "
                f"(height x width). Put Resize({max(self.size)}) or a larger one before it."
            )
        view.crop(round((view.width - width) / 2), round((view.height - height) / 2), width, height)


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
        if not 0 <= p <= 1:
            raise BadOption(f"p={p!r} is not a probability from 0 to 1.")
        self.p = p

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.mirror()


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


IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue in ImageNet, for values from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)

_DTYPES = ("float32", "float16", "bfloat16")


class Normalize(ImageTransform):
    """Convert the values of an image to floats: divide by 255, subtract the mean, divide by the standard deviation.

    The axes become channel, height and width, as torch's networks expect. This is the last step, done as late as
    possible: when the batch is collated, or on the device.

    Args:
        mean: of each channel, from 0 to 1; ImageNet's by default. A mean of 0 and a `std` of 1 for all channels give
            values from 0 to 1. One number after `Decode("L")` and `Decode("I;16")`.
        std: of each channel.
        dtype: "float32", "float16" or, for torch batches, "bfloat16".
        channels_first: False to keep the channel as the last axis.

    Example:
        >>> import numpy as np
        >>> Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))(np.full((1, 1, 3), 255, np.uint8)).tolist()
        [[[1.0]], [[1.0]], [[1.0]]]
    """

    rank = Rank.FINISH

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        dtype: str = "float32",
        channels_first: bool = True,
    ) -> None:
        channels = 1 if all(isinstance(one, (tuple, list)) and len(one) == 1 for one in (mean, std)) else 3
        self.mean = checked_numbers("mean", mean, channels)
        self.std = checked_numbers("std", std, channels)
        if not all(one > 0 for one in self.std):
            raise BadOption(f"std={std!r} contains a number that is not above 0. Values are divided by it.")
        if dtype not in _DTYPES:
            raise BadOption(f"dtype={dtype!r} is not one of {', '.join(map(repr, _DTYPES))}.")
        self.dtype = dtype
        self.channels_first = bool(channels_first)

    def draw(self, view: View) -> None:
        view.mean, view.std, view.dtype, view.channels_first = self.mean, self.std, self.dtype, self.channels_first


class ToChannelsFirst(ImageTransform):
    """Change the axes height, width and channel to channel, height and width; values stay as they are.

    Example:
        >>> import numpy as np
        >>> ToChannelsFirst()(np.zeros((30, 40, 3), np.uint8)).shape
        (3, 30, 40)
    """

    rank = Rank.FINISH

    def draw(self, view: View) -> None:
        view.channels_first = True
