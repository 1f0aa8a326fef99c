"""Steps that mix the channels of a pixel: saturation and hue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedline.images.opencv import opencv
from feedline.images.steps.step import Pixels, Step
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
        import torch

        factor = torch.tensor([step.factor for step in steps]).view(-1, 1, 1, 1).to(images.device, non_blocking=True)
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

        turn = torch.tensor([step.turn for step in steps]).view(-1, 1, 1).to(images.device, non_blocking=True)
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
