"""What a step is: a change to the pixels of an image after it was cropped and resized, before it is normalised.

A transform draws random numbers and adds steps to the `View` of an image. Steps hold these numbers and nothing else, so
they travel with the image to where it is finished: the dataset, the collate function or the device.

Values are rounded after every step as torchvision rounds those of uint8 images, so the result is the same to one of
255, wherever a step runs. `Hue` is less exact: see there.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import MissingExtra
from feedline.system.optional import require

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Pixels = NDArray[np.uint8]
"""With the axes height, width and color."""
Places = NDArray[np.intp]
"""Numbers of rows or columns."""
Matrix = tuple[float, float, float, float, float, float]
"""The two rows of an affine map: x' = a x + b y + c, y' = d x + e y + f.

Coordinates are those of pixel edges: an image of w x h pixels covers 0 to w and 0 to h, and the centre of its first
pixel is at (0.5, 0.5).
"""


class Step(ABC):
    """A change to the pixels of one image. Subclasses are frozen dataclasses of plain numbers."""

    __slots__ = ()

    is_symmetric: ClassVar[bool] = True
    """True if a flip may as well happen before the step as after it."""
    is_batched: ClassVar[bool] = True
    """True if a device can do it: it has `apply_batch`. Others are left to the worker, with all steps before them."""

    @property
    def group(self) -> Hashable:
        """What has to be the same in steps that `apply_batch` does together."""
        return None

    @abstractmethod
    def apply(self, pixels: Pixels) -> Pixels:
        """Return the changed image, on the CPU. The image that was passed stays as it is."""

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        """Return the changed images of a batch, each changed by its own step, on their device.

        Args:
            steps: one for each image, all of this class and of one `group`.
            images: float32 with whole numbers from 0 to 255, and the axes image, color, height, width.
        """
        raise NotImplementedError


class GeometricStep(Step):
    """A step that moves pixels."""

    __slots__ = ()

    is_symmetric: ClassVar[bool] = False

    @abstractmethod
    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the result for an image of this size."""

    @abstractmethod
    def matrix(self, width: int, height: int) -> Matrix:
        """Return the map from coordinates of an image of this size to coordinates of the result."""

    def sources(self, columns: Places, rows: Places, width: int, height: int) -> tuple[Places, Places]:
        """Return which column and row of an image of this size pixels of the result show: the nearest.

        Args:
            columns: of pixels of the result; they broadcast with `rows`.
            rows: of these pixels.
            width: of the image.
            height: of the image.
        """
        a, b, c, d, e, f = inverse(self.matrix(width, height))
        x, y = columns + 0.5, rows + 0.5
        from_x = a * x + c if b == 0 else a * x + b * y + c
        from_y = e * y + f if d == 0 else d * x + e * y + f
        return np.floor(from_x).astype(np.intp), np.floor(from_y).astype(np.intp)


def after(first: Matrix, second: Matrix) -> Matrix:
    """Return the map that does `first`, then `second`.

    Example:
        >>> after((2, 0, 0, 0, 2, 0), (1, 0, 5, 0, 1, 6))
        (2, 0, 5, 0, 2, 6)
    """
    a, b, c, d, e, f = first
    p, q, r, s, t, u = second
    return (p * a + q * d, p * b + q * e, p * c + q * f + r, s * a + t * d, s * b + t * e, s * c + t * f + u)


def inverse(matrix: Matrix) -> Matrix:
    """Return the map back.

    Example:
        >>> inverse((2, 0, 6, 0, 4, 8))
        (0.5, 0.0, -3.0, 0.0, 0.25, -2.0)
    """
    a, b, c, d, e, f = matrix
    scale = 1 / (a * e - b * d)
    p, q, s, t = e * scale, -b * scale + 0.0, -d * scale + 0.0, a * scale
    return (p, q, -(p * c + q * f), s, t, -(s * c + t * f))


def column(values: Sequence[object], images: Tensor) -> Tensor:
    """Return a number for each image, on their device, in a shape that broadcasts with them."""
    import torch

    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1).to(images.device, non_blocking=True)


def opencv() -> ModuleType | None:
    """Return OpenCV's module, or None if it is not installed."""
    return _opencv_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _opencv_of(process: int) -> ModuleType | None:
    try:
        cv2 = require("cv2", extra="images", purpose="Resizing images")
    except MissingExtra:
        return None
    if multiprocessing.parent_process() is not None:
        cv2.setNumThreads(0)  # the workers provide the parallelism, and a fork has no threads of OpenCV
    return cv2
