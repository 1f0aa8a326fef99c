"""Transforms that give an image its final form."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_numbers
from feedline.images.transform import Rank

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
        channels = 1 if all(hasattr(one, "__len__") and len(one) == 1 for one in (mean, std)) else 3
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
