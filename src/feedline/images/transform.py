"""What a transform is: it changes the view of an image, and touches no pixels."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from feedline.images.geometry import View


class Rank(enum.Enum):
    """What a transform changes, which decides how it is fused with those before it."""

    GEOMETRY = "geometry"
    """The visible part of the image, or its size."""
    STEP = "step"
    """Pixels: it adds steps to the view."""
    FINISH = "finish"
    """The final form of the image."""


class ViewTransform(ABC):
    """A transform that `stages.py` can fuse with others."""

    rank: Rank
    resizes = False
    """True if it resamples pixels: after another transform that does, or after steps, it starts a new stage."""
    is_late = False
    """True if it may follow the finish."""
    mode: str | None = None
    """The mode that it chooses for the whole pipeline, if it does: see `decode_image`."""

    @abstractmethod
    def draw(self, view: View) -> None:
        """Change the view of an image, with random numbers of `feedline.rng()`."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"
