"""Transforms that decide at random which others to apply."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.randomness.scope import rng
from feedline.system.options import checked_number, checked_numbers


class RandomApply(ImageTransform):
    """Apply transforms to some images: all of them in order, or none.

    Args:
        transforms: transforms of `feedline.images` that neither resize nor finish an image.
        p: the probability.

    Example:
        >>> import numpy as np
        >>> from feedline import images
        >>> grey = images.RandomApply([images.HorizontalFlip(1.0), images.RandomGrayscale(1.0)], p=1.0)
        >>> grey(np.array([[[255, 0, 0], [0, 0, 0]]], np.uint8)).tolist()
        [[[0, 0, 0], [76, 76, 76]]]
    """

    def __init__(self, transforms: Sequence[ImageTransform], p: float = 0.5) -> None:
        self.transforms = _checked(transforms)
        self.p = checked_number("p", p, low=0, high=1)

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            for transform in self.transforms:
                transform.draw(view)


class RandomChoice(ImageTransform):
    """Apply one of several transforms.

    Args:
        transforms: transforms of `feedline.images` that neither resize nor finish an image.
        p: a weight for each of them; None for equal ones.

    Example:
        >>> from feedline import images
        >>> images.RandomChoice([images.RandomSolarize(128, 1.0), images.RandomGrayscale(1.0)], p=[0.3, 0.7])
        RandomChoice(transforms=(RandomSolarize(threshold=128.0, p=1.0), RandomGrayscale(p=1.0)), p=(0.3, 0.7))
    """

    def __init__(self, transforms: Sequence[ImageTransform], p: Sequence[float] | None = None) -> None:
        self.transforms = _checked(transforms)
        self.p = checked_weights(p, len(self.transforms))

    def draw(self, view: View) -> None:
        self.transforms[drawn_place(self.p, len(self.transforms))].draw(view)


def checked_weights(p: Sequence[float] | None, count: int) -> tuple[float, ...] | None:
    """Return `p=`, a weight for each of several transforms; None for equal ones.

    Raises:
        BadOption: it has another length, or negative weights, or only zeros.
    """
    weights = None if p is None else checked_numbers("p", p, count, low=0)
    if weights is not None and not sum(weights):
        raise BadOption(f"p={p!r} has no weight above 0.")
    return weights


def drawn_place(weights: tuple[float, ...] | None, count: int) -> int:
    """Draw one of several places: the larger its weight, the more likely."""
    ends = list(itertools.accumulate(weights or (1.0,) * count))
    return bisect.bisect_right(ends, rng().random() * ends[-1], hi=len(ends) - 1)


# object: what the user passed.
def _checked(transforms: Sequence[object]) -> tuple[ImageTransform, ...]:
    if not transforms or not isinstance(transforms, Iterable):
        raise BadOption(f"transforms={transforms!r} is not a list of at least one transform.")
    found: list[ImageTransform] = []
    for transform in transforms:
        if not isinstance(transform, ImageTransform) or transform.resizes or transform.finishes:
            raise BadOption(
                f"{transform!r} cannot be applied to some images only: here belong transforms of feedline.images that "
                "neither resize nor finish an image. Put it into the Compose itself."
            )
        found.append(transform)
    return tuple(found)
