"""What a transform is: it changes the view of an image, and touches no pixels."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any

from feedline.images.decoding import check_mode
from feedline.images.geometry import View


class Rank(enum.Enum):
    """What a transform changes, which decides how it is fused with those before it."""

    GEOMETRY = "geometry"
    """The visible part of the image, or its size."""
    STEP = "step"
    """Pixels: it adds steps to the view."""
    FINISH = "finish"
    """The final form of the image."""


# Any, throughout: an image is the bytes of a file, pixels, or a Pillow image; a sample has one among its fields.
class ImageTransform(ABC):
    """An image transform that feedline can fuse with others.

    Called with an image, or with a sample that contains one, it returns the finished image as an array.
    """

    rank: Rank
    resizes = False
    """True if it resamples pixels: after another transform that does, or after steps, it starts a new stage."""
    is_late = False
    """True if it may follow the finish."""

    @abstractmethod
    def draw(self, view: View) -> None:
        """Change the view of an image, with random numbers of `feedline.rng()`."""

    def __call__(self, image: object) -> Any:
        from feedline.images.compose import Compose

        return Compose([self])(image)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class Decode(ImageTransform):
    """Decode the bytes of an image file, and choose the channels. Pipelines without it decode to RGB.

    Args:
        mode: "RGB"; "L" for one channel of 8-bit grey; or "I;16" for one channel of 16-bit grey, which keeps all bits
            of 16-bit PNG and TIFF files: see `decode_image`. With one channel, transforms may crop, resize and move
            pixels, but not change colours, and `Normalize` takes one number each as `mean` and `std`.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> pipeline = images.Compose(
        ...     [images.Decode("I;16"), images.Resize(8), images.Normalize(mean=(0.5,), std=(0.5,))]
        ... )
        >>> pipeline(np.full((16, 16), 65535, np.uint16)).max()
        np.float32(1.0)
    """

    rank = Rank.GEOMETRY

    def __init__(self, mode: str = "RGB") -> None:
        check_mode(mode)
        self.mode = mode

    def draw(self, view: View) -> None:
        pass
