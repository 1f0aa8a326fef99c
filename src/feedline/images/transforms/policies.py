"""Augmentation policies: RandAugment, TrivialAugmentWide and AutoAugment, with the distributions of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.images.steps.colors import Saturation, Sharpness
from feedline.images.steps.geometric import Fill, Warp
from feedline.images.steps.step import Matrix, Step
from feedline.images.steps.tables import AutoContrast, Contrast, Equalize, brightness, invert, posterize, solarize
from feedline.images.transforms.geometry import Color, checked_fill
from feedline.images.transforms.warping import checked_interpolation, rotate
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_count

Magnitude = Callable[[float, View], float]
"""Returns the magnitude at a share of its range, from 0 to 1."""
Act = Callable[[View, float, str, Fill], None]
"""Adds an operation to a view, given its magnitude, the interpolation and the fill; no step if it changes nothing."""


class Operation(NamedTuple):
    """An operation of the policies."""

    act: Act
    magnitude: Magnitude | None = None
    """None if it has none."""
    wide: Magnitude | None = None
    """The same for `TrivialAugmentWide`."""
    is_signed: bool = False
    """True if its magnitude is negative half of the time."""


def _up_to(most: float) -> Magnitude:
    return lambda share, view: round(most * share, 9)  # so that translations by whole pixels are exact


def _bits(most: int) -> Magnitude:
    return lambda share, view: round(8 - most * share)


def _plain(step: Callable[[], Step]) -> Operation:
    return Operation(lambda view, value, *_: view.add(step()))


def _enhancing(step: Callable[[float], Step]) -> Operation:
    def act(view: View, value: float, *_: object) -> None:
        if value:
            view.add(step(1 + value))

    return Operation(act, _up_to(0.9), _up_to(0.99), True)


def _moving(matrix: Callable[[float], Matrix], magnitude: Magnitude, wide: float) -> Operation:
    def act(view: View, value: float, interpolation: str, fill: Fill) -> None:
        if matrix(value) != (1, 0, 0, 0, 1, 0):
            view.add(Warp(matrix(value), view.width, view.height, interpolation, fill))

    return Operation(act, magnitude, _up_to(wide), True)


def _posterize(view: View, value: float, *_: object) -> None:
    if value < 8:
        view.add(posterize(int(value)))


def _solarized(share: float, view: View) -> float:
    return 255 * round(1 - share, 9)


OPERATIONS = {
    "Identity": Operation(lambda *_: None),
    "ShearX": _moving(lambda value: (1.0, -value, 0.0, 0.0, 1.0, 0.0), _up_to(0.3), 0.99),
    "ShearY": _moving(lambda value: (1.0, 0.0, 0.0, -value, 1.0, 0.0), _up_to(0.3), 0.99),
    "TranslateX": _moving(
        lambda value: (1.0, 0.0, float(int(value)), 0.0, 1.0, 0.0),
        lambda share, view: round(150 / 331 * view.width * share, 9),
        32,
    ),
    "TranslateY": _moving(
        lambda value: (1.0, 0.0, 0.0, 0.0, 1.0, float(int(value))),
        lambda share, view: round(150 / 331 * view.height * share, 9),
        32,
    ),
    "Rotate": Operation(rotate, _up_to(30), _up_to(135), True),
    "Brightness": _enhancing(brightness),
    "Color": _enhancing(Saturation),
    "Contrast": _enhancing(Contrast),
    "Sharpness": _enhancing(Sharpness),
    "Posterize": Operation(_posterize, _bits(4), _bits(6)),
    "Solarize": Operation(lambda view, value, *_: view.add(solarize(value)), _solarized, _solarized),
    "AutoContrast": _plain(AutoContrast),
    "Equalize": _plain(Equalize),
    "Invert": _plain(invert),
}
_NAMES = tuple(OPERATIONS)[:-1]
"""Those of RandAugment and TrivialAugmentWide."""


class _Policy(ImageTransform):
    def __init__(self, interpolation: str, fill: Color) -> None:
        self.interpolation = checked_interpolation(interpolation)
        self.fill = checked_fill(fill)

    def _apply(self, view: View, name: str, share: float, *, is_wide: bool = False) -> None:
        operation = OPERATIONS[name]
        magnitude = operation.wide if is_wide else operation.magnitude
        value = 0.0 if magnitude is None else magnitude(share, view)
        if operation.is_signed and rng().random() <= 0.5:
            value = -value
        operation.act(view, value, self.interpolation, self.fill)


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
        self.num_ops = checked_count("num_ops", num_ops, 0)
        self.magnitude = checked_count("magnitude", magnitude, 0)
        self.num_magnitude_bins = checked_count("num_magnitude_bins", num_magnitude_bins, 2)
        if magnitude >= num_magnitude_bins:
            raise BadOption(f"magnitude={magnitude} is not below num_magnitude_bins={num_magnitude_bins}.")
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        for _ in range(self.num_ops):
            name = _NAMES[int(rng().random() * len(_NAMES))]
            self._apply(view, name, self.magnitude / (self.num_magnitude_bins - 1))


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
        self.num_magnitude_bins = checked_count("num_magnitude_bins", num_magnitude_bins, 2)
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        name = _NAMES[int(rng().random() * len(_NAMES))]
        bins = self.num_magnitude_bins
        self._apply(view, name, int(rng().random() * bins) / (bins - 1), is_wide=True)


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
        name = str(getattr(policy, "value", policy))  # torchvision has an enum
        self.policy = checked_choice("policy", name, POLICIES)
        super().__init__(interpolation, fill)

    def draw(self, view: View) -> None:
        pairs = POLICIES[self.policy]
        for name, chance, index in pairs[int(rng().random() * len(pairs))]:
            if rng().random() <= chance:
                self._apply(view, name, (index or 0) / 9)


_Learned = tuple[str, float, int | None]
"""Name, probability, and level from 0 to 9 of an operation that AutoAugment learned."""

POLICIES: dict[str, list[tuple[_Learned, _Learned]]] = {
    "imagenet": [
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, None), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, None)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, None)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, None), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, None)),
        (("Equalize", 0.0, None), ("Equalize", 0.8, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, None)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, None)),
        (("Color", 0.4, 0), ("Equalize", 0.6, None)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
    ],
    "cifar10": [
        (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
        (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
        (("Color", 0.9, 9), ("Equalize", 0.6, None)),
        (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, None), ("Invert", 0.1, None)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
    ],
    "svhn": [
        (("ShearX", 0.9, 4), ("Invert", 0.2, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.6, None), ("Solarize", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("AutoContrast", 0.8, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.4, None)),
        (("ShearY", 0.9, 5), ("Solarize", 0.2, 6)),
        (("Invert", 0.9, None), ("AutoContrast", 0.8, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("Solarize", 0.3, 3)),
        (("ShearY", 0.8, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.9, None), ("TranslateY", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Contrast", 0.3, 3), ("Rotate", 0.8, 4)),
        (("Invert", 0.8, None), ("TranslateY", 0.0, 2)),
        (("ShearY", 0.7, 6), ("Solarize", 0.4, 8)),
        (("Invert", 0.6, None), ("Rotate", 0.8, 4)),
        (("ShearY", 0.3, 7), ("TranslateX", 0.9, 3)),
        (("ShearX", 0.1, 6), ("Invert", 0.6, None)),
        (("Solarize", 0.7, 2), ("TranslateY", 0.6, 7)),
        (("ShearY", 0.8, 4), ("Invert", 0.8, None)),
        (("ShearX", 0.7, 9), ("TranslateY", 0.8, 3)),
        (("ShearY", 0.8, 5), ("AutoContrast", 0.7, None)),
        (("ShearX", 0.7, 2), ("Invert", 0.1, None)),
    ],
}
