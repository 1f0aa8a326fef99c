"""Values around 0, and the order of the axes."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View, checked_numbers

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Of the values of red, green and blue in ImageNet, which are from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)

_DTYPES = ("float32", "float16", "bfloat16")


class Normalize(ImageTransform):
    """Make floats of an image's values: divided by 255, less the mean, divided by the standard deviation.

    Axes are channel, height and width afterwards, as torch's networks have them. It is done last, as late as possible:
    when the batch is put together, or on the device.

    Args:
        mean: of each channel, from 0 to 1; ImageNet's by default. 0 for all and `std` 1 give values from 0 to 1.
        std: of each channel.
        dtype: "float32", "float16" or, for batches of torch, "bfloat16".
        channels_first: False to leave the channel the last axis.

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
        self.mean = checked_numbers("mean", mean, 3)
        self.std = checked_numbers("std", std, 3)
        if not all(one > 0 for one in self.std):
            raise BadOption(f"std={std!r} holds a number that is not above 0, and values are divided by it.")
        if dtype not in _DTYPES:
            raise BadOption(f"dtype={dtype!r} is none of {', '.join(map(repr, _DTYPES))}.")
        self.dtype = dtype
        self.channels_first = bool(channels_first)

    def draw(self, view: View) -> None:
        view.mean, view.std, view.dtype, view.channels_first = self.mean, self.std, self.dtype, self.channels_first


class ToChannelsFirst(ImageTransform):
    """Make channel, height and width of the axes height, width and channel; values stay as they are.

    Example:
        >>> import numpy as np
        >>> ToChannelsFirst()(np.zeros((30, 40, 3), np.uint8)).shape
        (3, 30, 40)
    """

    rank = Rank.FINISH

    def draw(self, view: View) -> None:
        view.channels_first = True
