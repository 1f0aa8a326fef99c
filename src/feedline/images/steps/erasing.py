"""The step that erases a rectangle, before or after an image is normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.images.steps.step import Pixels, Step

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


Values = TypeVar("Values", NDArray[np.generic], "Tensor")


@dataclass(frozen=True, slots=True)
class Erase(Step):
    """Replaces a rectangle."""

    is_symmetric: ClassVar[bool] = False

    left: int
    top: int
    width: int
    height: int
    value: tuple[float, ...] | None = (0.0, 0.0, 0.0)
    """Of each channel; None for random values."""
    seed: int = 0
    """Decides the random values: the same wherever the image is finished."""

    def mirrored(self, width: int) -> Erase:
        """Return the step for an image of this width that is flipped horizontally afterwards."""
        return replace(self, left=width - self.left - self.width)

    def apply(self, pixels: Pixels) -> Pixels:
        made = pixels.copy()
        self._part(made)[...] = self._bytes()
        return made

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        made = images.clone()
        for step, image in zip(steps, made, strict=True):
            values = torch.from_numpy(step._bytes()).to(image.device, image.dtype, non_blocking=True)
            step._part(image.permute(1, 2, 0))[...] = values
        return made

    def apply_finished(self, image: NDArray[np.generic] | Tensor) -> None:
        """Change a normalised image (height, width, color) in place. Random values have a normal distribution."""
        values = self._floats()
        if isinstance(image, np.ndarray):
            self._part(image)[...] = values
            return
        import torch

        self._part(image)[...] = torch.from_numpy(values).to(image.device, image.dtype, non_blocking=True)

    def _part(self, image: Values) -> Values:
        return image[self.top : self.top + self.height, self.left : self.left + self.width]

    def _floats(self) -> NDArray[np.float32]:
        if self.value is not None:
            return np.array(self.value, np.float32)
        return self._dice().standard_normal((self.height, self.width, 3), np.float32)

    def _bytes(self) -> Pixels:
        if self.value is not None:
            return np.array(self.value, np.uint8)
        return self._dice().integers(0, 256, (self.height, self.width, 3), np.uint8)

    def _dice(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.seed))
