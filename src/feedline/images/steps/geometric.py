"""Steps that move pixels: an affine map, a window that may reach beyond the image, a flip.

`apply` takes any number of channels, so the same steps serve masks: replace `fill` and `interpolation` before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.images.opencv import opencv
from feedline.images.steps.step import GeometricStep, Matrix, Pixels, Places, inverse

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Fill = tuple[float, ...]
"""The colour of what lies outside of an image."""
BLACK: Fill = (0.0, 0.0, 0.0)
INTERPOLATIONS = ("nearest", "bilinear")
PADDINGS = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, slots=True)
class Warp(GeometricStep):
    """An affine map."""

    map: Matrix
    """From coordinates of the image to coordinates of the result."""
    width: int
    """Width of the result; likewise `height`."""
    height: int
    interpolation: str = "nearest"
    """See `INTERPOLATIONS`."""
    fill: Fill = BLACK

    @property
    def group(self) -> Hashable:
        return self.width, self.height, self.interpolation

    def size(self, width: int, height: int) -> tuple[int, int]:
        return self.width, self.height

    def matrix(self, width: int, height: int) -> Matrix:
        return self.map

    def apply(self, pixels: Pixels) -> Pixels:
        a, b, c, d, e, f = self.map
        if (a, b, d, e) == (1, 0, 0, 1) and c == int(c) and f == int(f):  # moves the image by whole pixels
            return Window(-int(c), -int(f), self.width, self.height, "constant", self.fill).apply(pixels)
        cv2 = opencv()
        if cv2 is None:
            return _warped(pixels, self)
        a, b, c, d, e, f = inverse(self.map)
        centers = np.array([[a, b, c + (a + b - 1) / 2], [d, e, f + (d + e - 1) / 2]])
        kind = cv2.INTER_NEAREST if self.interpolation == "nearest" else cv2.INTER_LINEAR
        made: Pixels = cv2.warpAffine(
            pixels,
            centers,
            (self.width, self.height),
            flags=kind | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=self.fill,
        )
        return made.reshape(self.height, self.width, -1)  # OpenCV drops the axis of a single channel

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import affine_grid, grid_sample

        width, height, kind = steps[0].width, steps[0].height, steps[0].interpolation
        maps = torch.tensor([_theta(step, *images.shape[-2:]) for step in steps]).to(images.device, non_blocking=True)
        grid = affine_grid(maps, [len(steps), 3, height, width], align_corners=False)
        inside = torch.ones_like(images[:, :1])
        made = grid_sample(torch.cat([images, inside], 1), grid, kind, "zeros", align_corners=False)
        fill = (
            torch.tensor([step.fill for step in steps], dtype=torch.float32)
            .view(-1, 3, 1, 1)
            .to(images.device, non_blocking=True)
        )
        return made[:, :3].addcmul_(1 - made[:, 3:], fill).round_()


def _theta(step: Warp, height: int, width: int) -> list[list[float]]:
    """Return the map back in the coordinates of `affine_grid`, which range from -1 to 1."""
    a, b, c, d, e, f = inverse(step.map)
    across, down = step.width / 2, step.height / 2
    x, y = 2 / width, 2 / height
    return [
        [a * across * x, b * down * x, (a * across + b * down + c) * x - 1],
        [d * across * y, e * down * y, (d * across + e * down + f) * y - 1],
    ]


def _warped(pixels: Pixels, step: Warp) -> Pixels:
    """Do the same with NumPy."""
    a, b, c, d, e, f = inverse(step.map)
    height, width, channels = pixels.shape
    x, y = np.arange(step.width) + 0.5, (np.arange(step.height) + 0.5)[:, None]
    from_x, from_y = a * x + b * y + c - 0.5, d * x + e * y + f - 0.5
    padded = np.empty((height + 2, width + 2, channels), np.float32)
    padded[...] = step.fill[:channels]
    padded[1:-1, 1:-1] = pixels

    def at(column: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float32]:
        rows, columns = (row.clip(-1, height) + 1).astype(int), (column.clip(-1, width) + 1).astype(int)
        part: NDArray[np.float32] = padded[rows, columns]
        return part

    if step.interpolation == "nearest":
        return at(np.rint(from_x), np.rint(from_y)).astype(pixels.dtype)
    left, top = np.floor(from_x), np.floor(from_y)
    across, down = (from_x - left)[:, :, None], (from_y - top)[:, :, None]
    upper = at(left, top) * (1 - across) + at(left + 1, top) * across
    lower = at(left, top + 1) * (1 - across) + at(left + 1, top + 1) * across
    return np.rint(upper * (1 - down) + lower * down).astype(pixels.dtype)


@dataclass(frozen=True, slots=True)
class Window(GeometricStep):
    """A crop that may reach beyond the image, which is padded there."""

    left: int
    top: int
    width: int
    height: int
    padding: str = "constant"
    """See `PADDINGS`."""
    fill: Fill = BLACK

    @property
    def group(self) -> Hashable:
        return self.width, self.height

    def size(self, width: int, height: int) -> tuple[int, int]:
        return self.width, self.height

    def matrix(self, width: int, height: int) -> Matrix:
        return (1.0, 0.0, -float(self.left), 0.0, 1.0, -float(self.top))

    def apply(self, pixels: Pixels) -> Pixels:
        (rows, above), (columns, before) = self._parts(pixels.shape[1], pixels.shape[0])
        part = pixels[rows, columns]
        if part.shape[:2] == (self.height, self.width):
            return part
        if self.padding != "constant":
            lines, places = self._sources(pixels.shape[1], pixels.shape[0])
            return pixels[lines][:, places]
        made = np.empty((self.height, self.width, pixels.shape[2]), pixels.dtype)
        below, behind = above + part.shape[0], before + part.shape[1]
        # Not everywhere: filling three channels takes longer than copying them.
        for place in (np.s_[:above], np.s_[below:], np.s_[above:below, :before], np.s_[above:below, behind:]):
            made[place] = self.fill[: pixels.shape[2]]
        made[above:below, before:behind] = part
        return made

    def _parts(self, width: int, height: int) -> tuple[tuple[slice, int], tuple[slice, int]]:
        """Return the rows of the image that are in the window and where they begin there; likewise the columns."""
        return _part(self.top, self.height, height), _part(self.left, self.width, width)

    def _sources(self, width: int, height: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return which row and column of the image each row and column of the window shows."""
        return (
            _inside(np.arange(self.top, self.top + self.height), height, self.padding),
            _inside(np.arange(self.left, self.left + self.width), width, self.padding),
        )

    def sources(self, columns: Places, rows: Places, width: int, height: int) -> tuple[Places, Places]:
        columns, rows = columns + self.left, rows + self.top
        if self.padding == "constant":
            return columns, rows
        return _inside(columns, width, self.padding), _inside(rows, height, self.padding)

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        fills = (
            torch.tensor([step.fill for step in steps], dtype=torch.float32)
            .view(-1, 3, 1, 1)
            .to(images.device, non_blocking=True)
        )
        made = fills.expand(-1, -1, steps[0].height, steps[0].width).clone()
        for step, image, out in zip(steps, images, made, strict=True):
            if step.padding == "constant":
                (rows, above), (columns, before) = step._parts(image.shape[2], image.shape[1])
                part = image[:, rows, columns]
                out[:, above : above + part.shape[1], before : before + part.shape[2]] = part
            else:
                sources = step._sources(image.shape[2], image.shape[1])
                lines, places = (torch.from_numpy(one).to(image.device, non_blocking=True) for one in sources)
                out[...] = image.index_select(1, lines).index_select(2, places)
        return made


def _part(start: int, length: int, count: int) -> tuple[slice, int]:
    first, last = min(max(0, start), count), min(max(0, start + length), count)
    return slice(first, last), first - start if last > first else 0


def _inside(places: NDArray[np.intp], count: int, padding: str) -> NDArray[np.intp]:
    """Return the place inside an axis of this length that each place shows."""
    if padding == "edge" or count == 1:
        return places.clip(0, count - 1)
    if padding == "reflect":  # without repeating the outermost pixel
        places = np.abs(places) % (2 * count - 2)
        return np.minimum(places, 2 * count - 2 - places)
    places = places % (2 * count)
    return np.minimum(places, 2 * count - 1 - places)


@dataclass(frozen=True, slots=True)
class Flip(GeometricStep):
    """A flip of the horizontal axis, or of the vertical one."""

    vertical: bool = False

    def size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def matrix(self, width: int, height: int) -> Matrix:
        if self.vertical:
            return (1.0, 0.0, 0.0, 0.0, -1.0, float(height))
        return (-1.0, 0.0, float(width), 0.0, 1.0, 0.0)

    def apply(self, pixels: Pixels) -> Pixels:
        cv2 = opencv()
        if cv2 is not None:
            return cv2.flip(pixels, 0 if self.vertical else 1).reshape(pixels.shape)  # type: ignore[no-any-return]
        return pixels[::-1] if self.vertical else pixels[:, ::-1]

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        vertical = torch.tensor([step.vertical for step in steps]).view(-1, 1, 1, 1).to(images.device)
        return torch.where(vertical, images.flip(2), images.flip(3))
