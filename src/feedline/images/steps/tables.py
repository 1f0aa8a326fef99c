"""Steps that map each value of a channel to another one, tables of 256 values; and sequences of steps of all kinds.

Adjacent tables are composed, so that several steps are one pass over the pixels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.images.steps.step import GeometricStep, Pixels, Step, column, opencv

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Table = NDArray[np.uint8]
"""256 values, for all channels or, with a first axis, for each of the three."""

GREY = (0.2989, 0.587, 0.114)
"""Share of red, green and blue in grey."""
_VALUES = np.arange(256)
_FLOATS = np.arange(256, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Lookup(Step):
    """A table that does not depend on the image."""

    values: bytes
    """256 of them."""

    def table(self) -> Table:
        return np.frombuffer(self.values, np.uint8)

    def then(self, other: Lookup) -> Lookup:
        """Return the step that does both."""
        return Lookup(self.values.translate(other.values))

    def apply(self, pixels: Pixels) -> Pixels:
        return looked_up(pixels, self.table())

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        tables = torch.tensor(np.stack([step.table() for step in steps])).to(images.device, non_blocking=True)
        return _gathered(images, tables[:, None].expand(-1, 3, -1).float())


def brightness(factor: float) -> Lookup:
    """Return the step that multiplies values.

    Example:
        >>> brightness(1.5).table()[[0, 1, 100, 200]].tolist()
        [0, 1, 150, 255]
    """
    return _static(np.minimum(_FLOATS * np.float32(factor), 255))


def posterize(bits: int) -> Lookup:
    """Return the step that keeps the upper bits.

    Example:
        >>> posterize(3).table()[[31, 32, 255]].tolist()
        [0, 32, 224]
    """
    return _static(_VALUES & -(1 << (8 - bits)))


def solarize(threshold: float) -> Lookup:
    """Return the step that inverts values from a threshold on.

    Example:
        >>> solarize(128).table()[[0, 127, 128, 255]].tolist()
        [0, 127, 127, 0]
    """
    return _static(np.where(threshold <= _VALUES, 255 - _VALUES, _VALUES))


def invert() -> Lookup:
    """Return the step that inverts values.

    Example:
        >>> invert().table()[[0, 100, 255]].tolist()
        [255, 155, 0]
    """
    return _static(255 - _VALUES)


def _static(values: NDArray[np.generic]) -> Lookup:
    return Lookup(values.astype(np.uint8).tobytes())


class MeasuredTable(Step):
    """A table that depends on the image."""

    __slots__ = ()

    @abstractmethod
    def table(self, pixels: Pixels) -> Table:
        """Return the table for an image."""

    def apply(self, pixels: Pixels) -> Pixels:
        return looked_up(pixels, self.table(pixels))


@dataclass(frozen=True, slots=True)
class Contrast(MeasuredTable):
    """Multiplies the distance from the mean grey."""

    factor: float

    def table(self, pixels: Pixels) -> Table:
        cv2 = opencv()
        means = pixels.mean((0, 1)) if cv2 is None else cv2.mean(pixels)[:3]
        # torchvision rounds each grey down, which takes half of a value from it on average.
        mean = max(0.0, sum(share * one for share, one in zip(GREY, means, strict=True)) - 0.5)
        table: Table = np.clip(self.factor * _FLOATS + (1 - self.factor) * mean, 0, 255).astype(np.uint8)
        return table

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        factor = column([step.factor for step in steps], images)
        mean = grey(images).floor_().mean((2, 3), keepdim=True)
        return (images * factor).add_((1 - factor) * mean).clamp_(0, 255).floor_()


@dataclass(frozen=True, slots=True)
class AutoContrast(MeasuredTable):
    """Stretches the values of each channel to the range from 0 to 255."""

    def table(self, pixels: Pixels) -> Table:
        cv2 = opencv()
        if cv2 is None:
            ends = np.stack([pixels.min((0, 1)), pixels.max((0, 1))], 1)
        else:
            ends = np.array([cv2.minMaxLoc(plane)[:2] for plane in cv2.split(pixels)])
        least, most = ends[:, :1].astype(np.float32), ends[:, 1:].astype(np.float32)
        least, most = np.where(most > least, least, 0), np.where(most > least, most, 255)  # a single value stays
        return np.clip((_FLOATS - least) / ((most - least) / np.float32(255)), 0, 255).astype(np.uint8)

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        flat = most == least
        stretched = (images - least) * torch.where(flat, 1.0, 255 / (most - least))
        return torch.where(flat, images, stretched.clamp_(0, 255).floor_())


@dataclass(frozen=True, slots=True)
class Equalize(MeasuredTable):
    """Spreads the values of each channel evenly."""

    def table(self, pixels: Pixels) -> Table:
        """Return the table that Pillow uses: steps of equal numbers of pixels, without those of the largest value."""
        counts = _counted(pixels)
        total = counts.cumsum(1)
        largest = counts[np.arange(3), total.argmax(1)][:, None]
        step = (total[:, -1:] - largest) // 255
        table = (total - counts + step // 2) // np.maximum(step, 1)
        return np.where(step > 0, np.minimum(table, 255), _VALUES).astype(np.uint8)

    @classmethod
    def apply_batch(cls, steps: Sequence[Self], images: Tensor) -> Tensor:
        import torch

        count, planes = images.shape[2] * images.shape[3], images.shape[0] * 3
        first = torch.arange(planes, device=images.device).view(-1, 1) * 256
        counts = torch.bincount((images.reshape(planes, -1).long() + first).flatten(), minlength=planes * 256)
        counts = counts.view(planes, 256)
        last = (counts > 0).long().mul(torch.arange(1, 257, device=images.device)).amax(1, keepdim=True) - 1
        step = (count - counts.gather(1, last)) // 255
        total = counts.cumsum(1) - counts
        table = ((total + step // 2) // step.clamp(min=1)).clamp_(0, 255)
        table = torch.where(step > 0, table, torch.arange(256, device=images.device))
        return _gathered(images, table.view(-1, 3, 256).float())


def _counted(pixels: Pixels) -> NDArray[np.int64]:
    """Return how many pixels have each value, for each channel."""
    cv2 = opencv()
    if cv2 is None:
        return np.stack([np.bincount(pixels[:, :, channel].reshape(-1), minlength=256) for channel in range(3)])
    found = [cv2.calcHist([pixels], [channel], None, [256], [0, 256]).reshape(-1) for channel in range(3)]
    return np.stack(found).astype(np.int64)


def looked_up(pixels: Pixels, table: Table) -> Pixels:
    """Return an image with its values replaced."""
    cv2 = opencv()
    if cv2 is not None:
        return cv2.LUT(pixels, table if table.ndim == 1 else np.ascontiguousarray(table.T)[None])  # type: ignore[no-any-return]
    if table.ndim == 1:
        return table[pixels]
    return np.stack([table[channel][pixels[:, :, channel]] for channel in range(3)], 2)


def composed(first: Table | None, second: Table) -> Table:
    """Return the table that does both, the first one first."""
    if first is None or second.ndim == 1:
        return second if first is None else second[first]
    if first.ndim == 1:
        return second[:, first]
    return np.take_along_axis(second, first.astype(np.intp), 1)


def grey(images: Tensor) -> Tensor:
    """Return the grey of images with the axes image, color, height, width."""
    return GREY[0] * images[:, 0:1] + GREY[1] * images[:, 1:2] + GREY[2] * images[:, 2:3]


def _gathered(images: Tensor, tables: Tensor) -> Tensor:
    """Look up the values of images in tables with the axes image, color, value."""
    import torch

    first = torch.arange(0, tables.numel(), 256, device=images.device, dtype=torch.int32)
    places = images.int().add_(first.view(*images.shape[:2], 1, 1))
    return tables.reshape(-1).index_select(0, places.reshape(-1)).view(images.shape)


# -- sequences ---------------------------------------------------------------------------------------------------------


def apply_steps(pixels: Pixels, steps: Sequence[Step]) -> Pixels:
    """Return an image after all steps."""
    pixels, table = apply_to_last_table(pixels, steps)
    return pixels if table is None else looked_up(pixels, table)


def apply_to_last_table(pixels: Pixels, steps: Sequence[Step]) -> tuple[Pixels, Table | None]:
    """Return an image after its steps, and the table of the last ones, which is still to be applied; None for none."""
    table: Table | None = None
    for step in steps:
        if isinstance(step, Lookup):
            table = composed(table, step.table())
            continue
        if table is not None:
            pixels, table = looked_up(pixels, table), None
        if isinstance(step, MeasuredTable):
            table = step.table(pixels)
        else:
            pixels = step.apply(pixels)
    return pixels, table


def for_worker(steps: Sequence[Step], *, resize: bool) -> int:
    """Return how many steps are left to the worker: up to the last one that a device cannot do.

    A device needs images of one size. If steps change it, all that move pixels are left to the worker.
    """
    own = (not step.is_batched or (resize and isinstance(step, GeometricStep)) for step in steps)
    return max((place + 1 for place, is_own in enumerate(own) if is_own), default=0)


def apply_steps_to_batch(images: Tensor, rows: Sequence[Sequence[Step]]) -> Tensor:
    """Return the images of a batch after the steps of each, on their device.

    The first steps of all images are done before the second ones; those of one kind are done together.

    Args:
        images: float32 with whole numbers from 0 to 255, and the axes image, color, height, width.
        rows: the steps of each image. They keep the size, and all have `is_batched`.
    """
    import torch

    made = list(images)
    for place in range(max(map(len, rows), default=0)):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for row, steps in enumerate(rows):
            if place < len(steps):
                groups[type(steps[place]), steps[place].group].append(row)
        for chosen in groups.values():
            alike = [rows[row][place] for row in chosen]
            changed = type(alike[0]).apply_batch(alike, torch.stack([made[row] for row in chosen]))
            for row, image in zip(chosen, changed, strict=True):
                made[row] = image
    return torch.stack(made)
