"""Augmentation policies: RandAugment, TrivialAugmentWide and AutoAugment, with the distributions of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View, checked_fill, checked_interpolation
from feedline.images.steps.colors import Saturation
from feedline.images.steps.filters import Sharpness
from feedline.images.steps.geometric import Fill, Warp
from feedline.images.steps.tables import AutoContrast, Contrast, Equalize, brightness, invert, posterize, solarize
from feedline.images.transform import Rank
from feedline.images.transforms.learned import POLICIES
from feedline.images.transforms.warping import Color, rotate
from feedline.randomness.scope import rng


@dataclass(frozen=True, slots=True)
class Level:
    """One of several values between two ends."""

    index: int
    count: int

    def between(self, start: float, end: float) -> float:
        """Return the value, rounded so that whole numbers are exact: translations are cut off to whole pixels."""
        return round(start + (end - start) * self.index / (self.count - 1), 9)

    def bits(self, most: int) -> int:
        """Return how many bits to keep, if as many as `most` may be removed."""
        return round(8 - self.index / ((self.count - 1) / most))


Magnitude = Callable[[Level, int, int], float]
"""Returns the magnitude of an operation for a level, and an image's width and height."""


def _up_to(most: float) -> Magnitude:
    return lambda level, width, height: level.between(0, most)


_SIGNED = frozenset(
    ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")
)
"""Operations whose magnitude is negative half of the time."""

_COLORS = ("Brightness", "Color", "Contrast", "Sharpness")

# None: an operation without magnitude.
_SPACE: Mapping[str, Magnitude | None] = {
    "Identity": None,
    "ShearX": _up_to(0.3),
    "ShearY": _up_to(0.3),
    "TranslateX": lambda level, width, height: level.between(0, 150 / 331 * width),
    "TranslateY": lambda level, width, height: level.between(0, 150 / 331 * height),
    "Rotate": _up_to(30),
    **dict.fromkeys(_COLORS, _up_to(0.9)),
    "Posterize": lambda level, width, height: level.bits(4),
    "Solarize": lambda level, width, height: 255 * level.between(1, 0),
    "AutoContrast": None,
    "Equalize": None,
}
_WIDE_SPACE: Mapping[str, Magnitude | None] = {
    **_SPACE,
    **dict.fromkeys(("ShearX", "ShearY"), _up_to(0.99)),
    **dict.fromkeys(("TranslateX", "TranslateY"), _up_to(32)),
    "Rotate": _up_to(135),
    **dict.fromkeys(_COLORS, _up_to(0.99)),
    "Posterize": lambda level, width, height: level.bits(6),
}
_LEARNED_SPACE: Mapping[str, Magnitude | None] = {**_SPACE, "Invert": None}


class _Policy(ImageTransform):
    rank = Rank.STEP

    def __init__(self, interpolation: str, fill: Color) -> None:
        self.interpolation = checked_interpolation(interpolation)
        self.fill = checked_fill(fill)

    def _apply(self, view: View, name: str, magnitude: Magnitude | None, level: Level) -> None:
        value = 0.0
        if magnitude is not None:
            value = magnitude(level, view.width, view.height)
            if name in _SIGNED and rng().random() <= 0.5:
                value = -value
        apply_operation(view, name, value, self.interpolation, self.fill)


class RandAugment(_Policy):
    """Apply operations that are chosen at random, all with one magnitude.

    See "RandAugment: Practical automated data augmentation with a reduced search space", arXiv 1909.13719.

    Args:
        num_ops: how many operations to apply, one after another.
        magnitude: of all operations, from 0 to `num_magnitude_bins` - 1.
        num_magnitude_bins: into how many values the range of a magnitude is divided.
        interpolation: "nearest" or "bilinear", where pixels are moved.
        fill: the value of what lies outside of the image, or one for each channel; None for 0.

    Example:
        >>> import numpy as np
        >>> RandAugment()(np.zeros((8, 8, 3), np.uint8)).shape
        (8, 8, 3)
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: str = "nearest",
        fill: Color = None,
    ) -> None:
        if num_ops < 0:
            raise BadOption(f"num_ops={num_ops!r} is below 0.")
        _check_bins(num_magnitude_bins)
        if not 0 <= magnitude < num_magnitude_bins:
            raise BadOption(
                f"magnitude={magnitude!r} is not from 0 to {num_magnitude_bins - 1}, the range that "
                f"num_magnitude_bins={num_magnitude_bins} stands for."
            )
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.num_magnitude_bins = num_magnitude_bins
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        level = Level(self.magnitude, self.num_magnitude_bins)
        for _ in range(self.num_ops):
            name = _NAMES[int(rng().random() * len(_NAMES))]
            self._apply(view, name, _SPACE[name], level)


_NAMES = tuple(_SPACE)


class TrivialAugmentWide(_Policy):
    """Apply one operation that is chosen at random, with a random magnitude.

    See "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", arXiv 2103.10158.

    Args:
        num_magnitude_bins: into how many values the range of a magnitude is divided.
        interpolation: "nearest" or "bilinear", where pixels are moved.
        fill: the value of what lies outside of the image, or one for each channel; None for 0.

    Example:
        >>> import numpy as np
        >>> TrivialAugmentWide()(np.zeros((8, 8, 3), np.uint8)).shape
        (8, 8, 3)
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: str = "nearest", fill: Color = None) -> None:
        _check_bins(num_magnitude_bins)
        self.num_magnitude_bins = num_magnitude_bins
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        name = _NAMES[int(rng().random() * len(_NAMES))]
        bins = self.num_magnitude_bins
        self._apply(view, name, _WIDE_SPACE[name], Level(int(rng().random() * bins), bins))


class AutoAugment(_Policy):
    """Apply one of 25 pairs of operations that were learned for a dataset.

    See "AutoAugment: Learning Augmentation Strategies from Data", arXiv 1805.09501.

    Args:
        policy: the dataset: "imagenet", "cifar10" or "svhn".
        interpolation: "nearest" or "bilinear", where pixels are moved.
        fill: the value of what lies outside of the image, or one for each channel; None for 0.

    Example:
        >>> import numpy as np
        >>> AutoAugment("cifar10")(np.zeros((8, 8, 3), np.uint8)).shape
        (8, 8, 3)
    """

    def __init__(self, policy: str = "imagenet", interpolation: str = "nearest", fill: Color = None) -> None:
        self.policy = str(getattr(policy, "value", policy))  # torchvision has an enum
        if self.policy not in POLICIES:
            raise BadOption(f"policy={policy!r} is not one of {', '.join(map(repr, POLICIES))}.")
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        pairs = POLICIES[self.policy]
        for name, chance, index in pairs[int(rng().random() * len(pairs))]:
            if rng().random() <= chance:
                self._apply(view, name, _LEARNED_SPACE[name], Level(index or 0, 10))


def _check_bins(num_magnitude_bins: int) -> None:
    if num_magnitude_bins < 2:
        raise BadOption(f"num_magnitude_bins={num_magnitude_bins!r} is below 2.")


def apply_operation(view: View, name: str, value: float, interpolation: str, fill: Fill) -> None:
    """Apply an operation to the current view. Those that would change nothing add no step."""
    if name in ("ShearX", "ShearY", "TranslateX", "TranslateY"):
        moved = int(value)
        matrix = {
            "ShearX": (1.0, -value, 0.0, 0.0, 1.0, 0.0),
            "ShearY": (1.0, 0.0, 0.0, -value, 1.0, 0.0),
            "TranslateX": (1.0, 0.0, float(moved), 0.0, 1.0, 0.0),
            "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, float(moved)),
        }[name]
        if matrix != (1, 0, 0, 0, 1, 0):
            view.add(Warp(matrix, view.width, view.height, interpolation, fill))
    elif name == "Rotate":
        rotate(view, value, interpolation, fill)
    elif name in _COLORS:
        if value:
            change = {"Brightness": brightness, "Color": Saturation, "Contrast": Contrast, "Sharpness": Sharpness}[name]
            view.add(change(1 + value))
    elif name == "Posterize":
        if value < 8:
            view.add(posterize(int(value)))
    elif name == "Solarize":
        view.add(solarize(value))
    elif name != "Identity":
        view.add({"AutoContrast": AutoContrast, "Equalize": Equalize, "Invert": invert}[name]())
