"""Left and right exchanged."""

from __future__ import annotations

from feedline.errors import BadOption
from feedline.images.compose import ImageTransform, Rank
from feedline.images.geometry import View
from feedline.randomness.scope import rng


class HorizontalFlip(ImageTransform):
    """Exchange left and right of some images.

    Args:
        p: how likely that is.

    Example:
        >>> import numpy as np
        >>> HorizontalFlip(1.0)(np.arange(6, dtype=np.uint8).reshape(1, 2, 3)).tolist()
        [[[3, 4, 5], [0, 1, 2]]]
    """

    rank = Rank.ANY

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise BadOption(f"p={p!r} is no probability from 0 to 1.")
        self.p = p

    def draw(self, view: View) -> None:
        if rng().random() < self.p:
            view.flip = not view.flip
