"""Transforms that change the values of pixels: colours, blur, an erased rectangle, the final form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.images.steps.colors import Blur, Hue, Saturation
from feedline.images.steps.geometric import Erase
from feedline.images.steps.step import Step
from feedline.images.steps.tables import Contrast, brightness, solarize
from feedline.images.transforms.geometry import TRIES
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_number, checked_numbers, checked_range

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue in ImageNet, for values from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)

_DTYPES = ("float32", "float16", "bfloat16")

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
        checked_number(name, value, low=0)
        value = (max(0.0, neutral - value) if neutral else -value, neutral + value)
    return checked_range(name, value, low=0) if neutral else checked_range(name, value, low=-0.5, high=0.5)


class RandomGrayscale(ImageTransform):
    """Make some images grey. They keep three channels.

    Args:
        p: the probability.

    Example:
        >>> import numpy as np
        >>> RandomGrayscale(1.0)(np.array([[[255, 0, 0]]], np.uint8)).tolist()
        [[[76, 76, 76]]]
    """

    def __init__(self, p: float = 0.1) -> None:
        self.p = checked_number("p", p, low=0, high=1)

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

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold = checked_number("threshold", threshold, low=0, high=255)
        self.p = checked_number("p", p, low=0, high=1)

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

    def __init__(self, kernel_size: int | tuple[int, int], sigma: float | tuple[float, float] = (0.1, 2.0)) -> None:
        both = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(both) != 2 or not all(type(one) is int and one > 0 and one % 2 for one in both):
            raise BadOption(f"kernel_size={kernel_size!r} is not an odd number above 0, or two of them.")
        self.kernel_size = both
        self.sigma = checked_range("sigma", (sigma, sigma) if isinstance(sigma, (int, float)) else sigma, above=0)

    def draw(self, view: View) -> None:
        low, high = self.sigma
        sigma = low + (high - low) * rng().random()
        view.add(Blur(*self.kernel_size, sigma, sigma))


class RandomErasing(ImageTransform):
    """Erase a rectangle of random size, shape and position in some images. It usually follows `Normalize`.

    The distribution is the same as in torchvision: ten attempts to find a rectangle that fits, then none.

    Args:
        p: the probability.
        scale: minimum and maximum share of the image's area.
        ratio: minimum and maximum ratio of height to width.
        value: the value to write, or one for each channel; "random" for a value of its own for each pixel and channel.
            After `Normalize`, values are normalised ones: 0 is the mean colour, and random ones are normally
            distributed. Before it, they range from 0 to 255, and random ones are uniformly distributed.

    Example:
        >>> import numpy as np
        >>> erased = RandomErasing(1.0, scale=(0.25, 0.25), ratio=(1, 1))(np.ones((8, 8, 3), np.uint8))
        >>> int((erased == 0).sum()) // 3
        16
    """

    is_late = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0,
    ) -> None:
        self.p = checked_number("p", p, low=0, high=1)
        self.scale = checked_range("scale", scale, low=0, high=1)
        self.ratio = checked_range("ratio", ratio, above=0)
        values = (value,) * 3 if isinstance(value, (int, float)) else value
        self.value = "random" if value == "random" else checked_numbers("value", values, 3)

    def draw(self, view: View) -> None:
        random = rng().random
        if random() >= self.p:
            return
        (least, most), (flat, tall) = self.scale, self.ratio
        for _ in range(TRIES):
            area = view.width * view.height * (least + (most - least) * random())
            shape = flat * (tall / flat) ** random()
            height, width = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if height < view.height and width < view.width:
                left, top = int(random() * (view.width - width + 1)), int(random() * (view.height - height + 1))
                self._erase(view, left, top, width, height)
                return

    def _erase(self, view: View, left: int, top: int, width: int, height: int) -> None:
        if isinstance(self.value, tuple):
            step = Erase(left, top, width, height, self.value)
        else:
            step = Erase(left, top, width, height, None, int(rng().integers(1 << 62)))
        if view.mean is not None:
            view.erasures.append(step)
            return
        if step.value is not None and not all(0 <= one <= 255 for one in step.value):
            raise BadOption(
                f"RandomErasing(value={self.value!r}) comes before Normalize, where values range from 0 to 255. Put it "
                "after Normalize, or use a value in this range."
            )
        view.add(step)


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

    finishes = True

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        dtype: str = "float32",
        channels_first: bool = True,
    ) -> None:
        channels = 1 if all(hasattr(one, "__len__") and len(one) == 1 for one in (mean, std)) else 3
        self.mean = checked_numbers("mean", mean, channels)
        self.std = checked_numbers("std", std, channels, above=0)
        self.dtype = checked_choice("dtype", dtype, _DTYPES)
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

    finishes = True

    def draw(self, view: View) -> None:
        view.channels_first = True
