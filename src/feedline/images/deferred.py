"""Unfinished images: the data so far, and the steps that remain.

A `DeferredImage` is the image of one sample, a `DeferredImages` those of a batch. Both describe the remaining steps
with plain numbers, so crop, flip and colours come out the same on the CPU and on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Finish:
    """The final form of the images of a batch, the same for all of them."""

    height: int
    width: int
    mean: tuple[float, ...] | None = None
    """Subtracted from each channel after scaling it to 0 to 1; None to keep the values as they are."""
    std: tuple[float, ...] | None = None
    """Divides each channel after the mean is subtracted."""
    dtype: str = "uint8"
    """"uint8", or, after normalising, "float32", "float16" or "bfloat16"."""
    channels_first: bool = False
    """True for the axes channel, height, width."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a finished image."""
        return (3, self.height, self.width) if self.channels_first else (self.height, self.width, 3)


@dataclass(slots=True)
class DeferredImage:
    """One image with steps that remain. It has either `pixels`, or `data` and a `box`."""

    finish: Finish
    flip: bool = False
    """True if the image still has to be flipped horizontally."""
    jitter: NDArray[Any] | None = None
    """The random draw of `ColorJitter` (float32), or None to keep the colours: the factors for brightness, contrast and
    saturation, the amount to add to the hue, and the order of the four, as numbers from 0 to 3.
    """
    pixels: NDArray[Any] | None = None
    """8-bit values with the axes height, width and color, of the size in `finish`."""
    data: bytes | None = None
    """A JPEG file that the device can decode, with EXIF orientation 1."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height of the part of the decoded image to crop and resize, in pixels."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the finished image, under the name that arrays have: messages show it if shapes differ."""
        return self.finish.shape


# Any: NumPy arrays, or torch tensors in torch batches.
@dataclass(slots=True)
class DeferredImages:
    """The images of a batch, in two groups: those with pixels, and those that are still encoded."""

    finish: Finish
    flips: Any
    """For each image of the batch, 1 if it has to be flipped horizontally (uint8)."""
    jitter: Any
    """For each image, the draw of `ColorJitter`, see `DeferredImage` (float32); None if all keep their colours."""
    pixel_rows: Any
    """The rows of the batch that `pixels` holds (int64)."""
    pixels: Any
    """uint8 with the axes image, height, width, color."""
    encoded_rows: Any
    """The rows of the batch that are encoded (int64)."""
    data: Any
    """The encoded files, concatenated (uint8)."""
    offsets: Any
    """The offset of each file in `data`, and the end of the last one (int64)."""
    boxes: Any
    """Left, top, width and height for each encoded image (float32)."""

    def __len__(self) -> int:
        return len(self.flips)
