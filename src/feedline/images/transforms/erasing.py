"""The transform that erases a rectangle."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_numbers, checked_probability, checked_range
from feedline.images.steps.erasing import Erase
from feedline.images.transform import Rank
from feedline.randomness.scope import rng

_TRIES = 10


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

    rank = Rank.STEP
    is_late = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0,
    ) -> None:
        self.p = checked_probability(p)
        self.scale = checked_range("scale", scale)
        self.ratio = checked_range("ratio", ratio)
        if not 0 <= self.scale[0] <= self.scale[1] <= 1:
            raise BadOption(f"scale={scale!r} does not consist of shares from 0 to 1.")
        if self.ratio[0] <= 0:
            raise BadOption(f"ratio={ratio!r} contains a number that is not above 0.")
        if isinstance(value, str) and value != "random":
            raise BadOption(f'value={value!r} is not a number, three numbers or "random".')
        self.value: str | tuple[float, ...]
        if isinstance(value, str):
            self.value = value
        else:
            self.value = (float(value),) * 3 if isinstance(value, (int, float)) else checked_numbers("value", value, 3)

    def draw(self, view: View) -> None:
        random = rng().random
        if random() >= self.p:
            return
        (least, most), (flat, tall) = self.scale, self.ratio
        for _ in range(_TRIES):
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
