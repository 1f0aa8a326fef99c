"""Random sequences of all operations that move pixels."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from feedline import images
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View
from feedline.images.steps.geometric import Warp, Window
from feedline.images.steps.step import Matrix, after


class Cropped(ImageTransform):
    """Crops a part, given as fractions of the image."""

    adds_steps = False

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.part = left, top, width, height

    def draw(self, view: View) -> None:
        left, top, width, height = self.part
        across, down = max(1, int(width * view.width)), max(1, int(height * view.height))
        view.crop(int(left * (view.width - across)), int(top * (view.height - down)), across, down)


class Resized(ImageTransform):
    """Resizes each side by its own factor."""

    adds_steps = False
    resizes = True

    def __init__(self, across: float, down: float) -> None:
        self.by = across, down

    def draw(self, view: View) -> None:
        view.resize(max(1, int(self.by[0] * view.width)), max(1, int(self.by[1] * view.height)))


class Padded(ImageTransform):
    def __init__(self, left: int, top: int, right: int, bottom: int, padding: str) -> None:
        self.edges, self.padding = (left, top, right, bottom), padding

    def draw(self, view: View) -> None:
        left, top, right, bottom = self.edges
        width, height = max(1, view.width + left + right), max(1, view.height + top + bottom)
        view.add(Window(-left, -top, width, height, self.padding))


class Warped(ImageTransform):
    """Rotates, scales and shears around the centre."""

    def __init__(self, degrees: float, scale: float, shear: float) -> None:
        self.degrees, self.scale, self.shear = degrees, scale, shear

    def draw(self, view: View) -> None:
        x, y = view.width / 2, view.height / 2
        cos, sin = (self.scale * part(math.radians(self.degrees)) for part in (math.cos, math.sin))
        turned: Matrix = (cos, -sin + self.shear * cos, 0, sin, cos + self.shear * sin, 0)
        centered = after(after((1, 0, -x, 0, 1, -y), turned), (1, 0, x, 0, 1, y))
        view.add(Warp(centered, view.width, view.height))


_shares = st.floats(0, 1)
_sizes = st.floats(0.5, 1)
_edges = st.integers(-6, 12)

# Any, throughout: transforms of any class.
crops: Any = st.builds(Cropped, _shares, _shares, _sizes, _sizes)
resizes: Any = st.builds(Resized, st.floats(0.6, 1.6), st.floats(0.6, 1.6))
flips: Any = st.sampled_from([images.HorizontalFlip(1.0), images.VerticalFlip(1.0)])
warps: Any = st.builds(Warped, st.floats(-180, 180), st.floats(0.7, 1.3), st.floats(-0.3, 0.3))


def pads(*paddings: str) -> Any:
    return st.builds(Padded, _edges, _edges, _edges, _edges, st.sampled_from(paddings))


upright: Any = st.lists(crops | resizes | flips | pads("constant"), max_size=4)
"""Moves that keep the sides of boxes parallel to the sides of the image."""
moves: Any = st.lists(crops | resizes | flips | pads("constant") | warps, max_size=4)
whole_pixels: Any = st.lists(crops | flips | pads("constant", "edge", "reflect", "symmetric"), max_size=5)
"""Moves that do not interpolate pixels."""
