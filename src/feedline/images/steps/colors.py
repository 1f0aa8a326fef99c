"""Steps that change colours or sharpness: they mix the channels of a pixel, or a pixel with its neighbours."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.images.steps.geometric import Window, inside
from feedline.images.steps.step import Pixels, Step, column, opencv
from feedline.images.steps.tables import GREY, grey

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

_ROUND_DOWN = -0.49
"""Added where OpenCV rounds to the nearest value, to round down as torchvision does."""


@dataclass(frozen=True, slots=True)
class Saturation(Step):
    """Multiplies the distance from grey: 0 makes an image grey."""

    factor: float

    def apply(self, pixels: Pixels) -> Pixels:
        cv2, other = opencv(), 1 - self.factor
        if cv2 is not None:
            mixed = np.empty((3, 4))
            mixed[:, :3] = self.factor * np.eye(3) + other * np.array(GREY)
            # Grey is rounded down first, which takes half of a value from it on average.
            mixed[:, 3] = _ROUND_DOWN - (0.5 * other if self.factor else 0)
            return cv2.transform(pixels, mixed)  # type: ignore[no-any-return]
        grey = np.floor(pixels @ np.array(GREY, np.float32))[:, :, None]
        return np.clip(self.factor * pixels + other * grey, 0, 255).astype(np.uint8)

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        factor = column([step.factor for step in steps], images)
        return (images * factor).add_((1 - factor) * grey(images).floor_()).clamp_(0, 255).floor_()


@dataclass(frozen=True, slots=True)
class Hue(Step):
    """Turns the hue, which ranges from 0 to 1. The largest and the smallest value of a pixel stay the same."""

    turn: float

    def apply(self, pixels: Pixels) -> Pixels:
        cv2 = opencv()
        if cv2 is None:
            return self._by_numpy(pixels)
        turned = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_RGB2HSV)
        cv2.add(turned, (360 * (self.turn % 1), 0, 0, 0), turned)
        return cv2.convertScaleAbs(cv2.cvtColor(turned, cv2.COLOR_HSV2RGB))  # type: ignore[no-any-return]

    def _by_numpy(self, pixels: Pixels) -> Pixels:
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)
        red, green, blue = planes
        most = np.maximum(np.maximum(red, green), blue)
        spread = most - np.minimum(np.minimum(red, green), blue)
        is_red, is_green = most == red, most == green
        hue = np.where(is_red, green - blue, np.where(is_green, blue - red, red - green))
        hue /= np.maximum(spread, 1e-6)
        hue += np.where(is_red, np.float32(0), np.where(is_green, np.float32(2), np.float32(4)))
        hue += 6 * self.turn  # in sixths of the circle
        for plane, offset in zip(planes, (5, 3, 1), strict=True):
            sixth = hue + np.float32(offset)
            sixth -= 6 * np.floor(sixth * np.float32(1 / 6))  # the remainder, twenty times as fast as NumPy's own
            np.minimum(sixth, 4 - sixth, out=sixth)
            np.clip(sixth, 0, 1, out=sixth)
            sixth *= spread
            np.subtract(most, sixth, out=plane)
        return np.rint(planes.transpose(1, 2, 0)).astype(np.uint8)

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        turn = column([step.turn for step in steps], images)[:, 0]
        red, green, blue = images.unbind(1)
        most = images.amax(1)
        spread = most - images.amin(1)
        is_red = most == red
        is_green = ~is_red & (most == green)
        hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
        hue = torch.where(spread > 0, hue / spread, 0.0)
        # In sixths of the circle.
        hue += torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)) + 6 * turn
        planes = []
        for offset in (5, 3, 1):
            sixth = torch.remainder(hue + offset, 6)
            planes.append(most - torch.minimum(sixth, 4 - sixth).clamp_(0, 1) * spread)
        return torch.stack(planes, 1).round_()


_CENTER = 5 / 13
_NEIGHBOUR = 1 / 13
"""Shares of a pixel and of its neighbours in a smoothed one."""


@dataclass(frozen=True, slots=True)
class Sharpness(Step):
    """Multiplies the distance from a smoothed image. The outermost pixels stay."""

    factor: float

    def apply(self, pixels: Pixels) -> Pixels:
        if min(pixels.shape[:2]) < 3:
            return pixels
        center = self.factor + (1 - self.factor) * _CENTER
        neighbour = (1 - self.factor) * _NEIGHBOUR
        cv2 = opencv()
        if cv2 is not None:
            # Nine times the mean of nine pixels is the sum of the neighbours and the pixel itself.
            made: Pixels = cv2.addWeighted(
                pixels, center - neighbour, cv2.blur(pixels, (3, 3)), 9 * neighbour, _ROUND_DOWN
            )
        else:
            wide = pixels.astype(np.float32)
            made = np.empty_like(pixels)
            rows = wide[:-2] + wide[1:-1] + wide[2:]
            total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
            sharp = (center - neighbour) * wide[1:-1, 1:-1] + neighbour * total
            made[1:-1, 1:-1] = np.clip(sharp, 0, 255)
        for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
            made[edge] = pixels[edge]
        return made

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        from torch.nn.functional import avg_pool2d

        if min(images.shape[-2:]) < 3:
            return images
        factor = column([step.factor for step in steps], images)
        inner = images[:, :, 1:-1, 1:-1]
        smooth = (avg_pool2d(images, 3, 1) * (9 * _NEIGHBOUR)).add_(inner, alpha=_CENTER - _NEIGHBOUR).round_()
        made = images.clone()
        made[:, :, 1:-1, 1:-1] = (inner * factor).add_((1 - factor) * smooth).clamp_(0, 255).floor_()
        return made


@dataclass(frozen=True, slots=True)
class Blur(Step):
    """Smooths an image with a Gaussian."""

    taps_x: int
    """Number of pixels across, which is odd; likewise `taps_y`."""
    taps_y: int
    sigma_x: float
    sigma_y: float

    @property
    def group(self) -> Hashable:
        return self.taps_x, self.taps_y

    def apply(self, pixels: Pixels) -> Pixels:
        cv2 = opencv()
        if cv2 is not None:
            size = _needed(self.taps_x, self.sigma_x), _needed(self.taps_y, self.sigma_y)
            return cv2.GaussianBlur(pixels, size, self.sigma_x, None, self.sigma_y, cv2.BORDER_REFLECT_101)  # type: ignore[no-any-return]
        height, width = pixels.shape[:2]
        x, y = self.taps_x // 2, self.taps_y // 2
        wide = Window(-x, -y, width + 2 * x, height + 2 * y, "reflect").apply(pixels).astype(np.float32)
        down = sum(weight * wide[row : row + height] for row, weight in enumerate(taps(self.taps_y, self.sigma_y)))
        both = sum(weight * down[:, x : x + width] for x, weight in enumerate(taps(self.taps_x, self.sigma_x)))
        made: Pixels = np.rint(both).astype(np.uint8)
        return made

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import conv2d

        count, colors, height, width = images.shape
        x, y = steps[0].taps_x // 2, steps[0].taps_y // 2
        wide = images
        for axis, size, more in ((2, height, y), (3, width, x)):  # torch cannot reflect an image more than once
            places = torch.from_numpy(inside(np.arange(-more, size + more), size, "reflect"))
            wide = wide.index_select(axis, places.to(images.device, non_blocking=True))
        wide = wide.view(1, count * colors, height + 2 * y, width + 2 * x)
        for axis, name in ((2, "y"), (3, "x")):
            rows = [taps(getattr(step, f"taps_{name}"), getattr(step, f"sigma_{name}")) for step in steps]
            weights = torch.tensor(np.stack(rows)).to(images.device, non_blocking=True).repeat_interleave(colors, 0)
            shape = (count * colors, 1, -1, 1) if axis == 2 else (count * colors, 1, 1, -1)
            wide = conv2d(wide, weights.view(shape), groups=count * colors)
        return wide.view(count, colors, height, width).round_()


def _needed(count: int, sigma: float) -> int:
    """Return how many taps matter: those outside of four sigmas are less than a hundredth of a value together."""
    return min(count, 2 * math.ceil(4 * sigma) + 1)


def taps(count: int, sigma: float) -> NDArray[np.float32]:
    """Return the weights of so many neighbouring pixels.

    Example:
        >>> taps(3, 1.0).round(3).tolist()
        [0.27399998903274536, 0.4519999921321869, 0.27399998903274536]
    """
    distances = np.arange(count) - (count - 1) / 2
    weights = np.exp(-0.5 * (distances / sigma) ** 2)
    shares: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return shares
