"""Steps that know places: an affine map, a window that may reach beyond the image, a flip, an erased rectangle.

`apply` takes any number of channels, so those that move pixels serve masks, too: replace `fill` and `interpolation`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.images.steps.step import GeometricStep, Matrix, Pixels, Places, Step, column, inverse, opencv

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Values = TypeVar("Values", NDArray[np.generic], "Tensor")
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
        fill = column([step.fill for step in steps], images).view(-1, 3, 1, 1)
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

    is_batched: ClassVar[bool] = False

    left: int
    top: int
    width: int
    height: int
    padding: str = "constant"
    """See `PADDINGS`."""
    fill: Fill = BLACK

    def size(self, width: int, height: int) -> tuple[int, int]:
        return self.width, self.height

    def matrix(self, width: int, height: int) -> Matrix:
        return (1.0, 0.0, -float(self.left), 0.0, 1.0, -float(self.top))

    def apply(self, pixels: Pixels) -> Pixels:
        height, width = pixels.shape[:2]
        (rows, above), (columns, before) = _part(self.top, self.height, height), _part(self.left, self.width, width)
        part = pixels[rows, columns]
        if part.shape[:2] == (self.height, self.width):
            return part
        if self.padding != "constant":
            places, lines = self.sources(np.arange(self.width), np.arange(self.height), width, height)
            return pixels[lines][:, places]
        made = np.empty((self.height, self.width, pixels.shape[2]), pixels.dtype)
        below, behind = above + part.shape[0], before + part.shape[1]
        # Not everywhere: filling three channels takes longer than copying them.
        for place in (np.s_[:above], np.s_[below:], np.s_[above:below, :before], np.s_[above:below, behind:]):
            made[place] = self.fill[: pixels.shape[2]]
        made[above:below, before:behind] = part
        return made

    def sources(self, columns: Places, rows: Places, width: int, height: int) -> tuple[Places, Places]:
        columns, rows = columns + self.left, rows + self.top
        if self.padding == "constant":
            return columns, rows
        return inside(columns, width, self.padding), inside(rows, height, self.padding)


def _part(start: int, length: int, count: int) -> tuple[slice, int]:
    first, last = min(max(0, start), count), min(max(0, start + length), count)
    return slice(first, last), first - start if last > first else 0


def inside(places: NDArray[np.intp], count: int, padding: str) -> NDArray[np.intp]:
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

        vertical = column([step.vertical for step in steps], images) > 0
        return torch.where(vertical, images.flip(2), images.flip(3))


@dataclass(frozen=True, slots=True)
class Erase(Step):
    """Replaces a rectangle, before an image is normalised or after it."""

    is_symmetric: ClassVar[bool] = False
    is_batched: ClassVar[bool] = False

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
