"""Images that are not finished: what is there of them, and what is left to do.

A `DeferredImage` is one sample's image, a `DeferredImages` those of a batch. Both say what is left with plain numbers,
so that the same crop, flip and colours come out on the CPU and on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Finish:
    """What the images of a batch become: the same for all of them."""

    height: int
    width: int
    mean: tuple[float, ...] | None = None
    """Taken off each channel, whose values are from 0 to 1 then; None for values as they are."""
    std: tuple[float, ...] | None = None
    """What each channel is divided by afterwards."""
    dtype: str = "uint8"
    """"uint8", or, after normalising, "float32", "float16" or "bfloat16"."""
    channels_first: bool = False
    """True for the axes channel, height, width."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of each finished image."""
        return (3, self.height, self.width) if self.channels_first else (self.height, self.width, 3)


@dataclass(slots=True)
class DeferredImage:
    """One image of which something is left to do. It has `pixels`, or else `data` with a `box`."""

    finish: Finish
    flip: bool = False
    """True if left and right are still to be exchanged."""
    jitter: NDArray[Any] | None = None
    """What `ColorJitter` drew, None if colours stay: the factors of brightness, contrast and saturation, what is added
    to the hue, and the order in which the four are done, as the numbers 0 to 3 (float32)."""
    pixels: NDArray[Any] | None = None
    """Values of 8 bits with the axes height, width and color, of the size that `finish` says."""
    data: bytes | None = None
    """A JPEG file that the device can decode, with EXIF orientation 1."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height of what is cut out of the decoded image, in its pixels, and resized."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the finished image, as arrays have one: messages tell it if it does not fit others."""
        return self.finish.shape


# Any: arrays of NumPy, or tensors of torch where batches are of torch.
@dataclass(slots=True)
class DeferredImages:
    """The images of a batch, in two groups: those with pixels, and those that are still encoded."""

    finish: Finish
    flips: Any
    """For each image of the batch: 1 if left and right are to be exchanged (uint8)."""
    jitter: Any
    """For each image a row of what `ColorJitter` drew, see `DeferredImage` (float32); None if all colours stay."""
    pixel_rows: Any
    """Which rows of the batch `pixels` has (int64)."""
    pixels: Any
    """uint8 with the axes image, height, width, color."""
    encoded_rows: Any
    """Which rows of the batch are encoded (int64)."""
    data: Any
    """Their files, one after the other (uint8)."""
    offsets: Any
    """Where each begins in `data`, and where the last one ends (int64)."""
    boxes: Any
    """For each of them left, top, width and height (float32)."""

    def __len__(self) -> int:
        return len(self.flips)
