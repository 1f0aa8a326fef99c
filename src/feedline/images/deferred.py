"""Images that are not finished: what is there of them, and what is left to do.

A `DeferredImage` is one sample's image, a `DeferredImages` those of a batch. Both say what is left with plain numbers,
so that the same crop, flip and colours come out on the CPU and on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.deferred import DeferredBatch, DeferredField, Placement, Sources, placement
from feedline.errors import CollateError
from feedline.images.decoding import decode_image
from feedline.images.finish import Finish
from feedline.images.rendering import Pixels, cut, dtype_of, finish_into


@dataclass(slots=True)
class DeferredImage(DeferredField):
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

    @classmethod
    def collate_numpy(cls, items: Sequence[Any], where: str) -> Any:
        if items[0].finish.dtype == "bfloat16" and placement() is Placement.COLLATE:
            raise CollateError(
                f"The images{where} are to be of bfloat16, which NumPy lacks. Use Normalize() of float32 or float16, "
                "or feedline.DataLoader, whose batches are tensors."
            )
        return collate_images(items)

    @classmethod
    def collate_torch(cls, items: Sequence[Any]) -> Any:
        from feedline.frameworks.torch_memory import tensor_of  # needs torch

        batch = collate_images(items)
        if isinstance(batch, DeferredImages):
            for name in ("flips", "jitter", "pixel_rows", "pixels", "encoded_rows", "data", "offsets", "boxes"):
                array = getattr(batch, name)
                setattr(batch, name, None if array is None else tensor_of(array))
            return batch
        tensor = tensor_of(batch)
        return tensor.bfloat16() if items[0].finish.dtype == "bfloat16" else tensor


# Any: arrays of NumPy, or tensors of torch where batches are of torch.
@dataclass(slots=True)
class DeferredImages(DeferredBatch):
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

    @property
    def is_encoded(self) -> bool:
        return len(self.encoded_rows) > 0

    def finish_on(self, device: Any, sources: Sources) -> Any:
        from feedline.images.finishing import finish  # needs torch

        return finish(self, device, sources)


_UNCHANGED = np.array([1, 1, 1, 0, 0, 1, 2, 3], np.float32)
"""What `ColorJitter` would have drawn for colours that stay."""


# Any: of whatever type the images are to have.
def collate_images(images: Sequence[DeferredImage]) -> NDArray[Any] | DeferredImages:
    """Return the images of a batch as the placement says: one array, or `DeferredImages`.

    A device finishes all images of a batch alike; if they are not to be, they are finished here.

    Arrays are in the slot of the current task, if there is one. Images of bfloat16, which NumPy lacks, are of float32.

    Raises:
        CollateError: the images are not of one size, or of one type.
    """
    finish = images[0].finish
    alike = True
    for place, image in enumerate(images):
        if type(image) is not DeferredImage:
            raise _differ(finish, image, place)
        if image.finish != finish:  # datasets that are put together may normalise each in its way
            if image.finish.shape != finish.shape or image.finish.dtype != finish.dtype:
                raise _differ(finish, image, place)
            alike = False
    if alike and placement() in (Placement.DEVICE, Placement.DECODE):
        return _together(images, finish)
    shape, dtype = (len(images), *finish.shape), dtype_of(finish)
    # Of bfloat16 this is not the batch yet, and would take room from it.
    batch = memory.empty(shape, dtype) if finish.dtype != "bfloat16" else np.empty(shape, dtype)
    for row, image in zip(batch, images, strict=True):
        finish_into(row, _pixels(image), image.finish, flip=image.flip, jitter=image.jitter)
    return batch


def _pixels(image: DeferredImage) -> Pixels:
    if image.pixels is not None:
        return image.pixels
    assert image.data is not None
    assert image.box is not None
    return cut(decode_image(image.data), image.box, image.finish.width, image.finish.height)


def _together(images: Sequence[DeferredImage], finish: Finish) -> DeferredImages:
    pixels = {row: image.pixels for row, image in enumerate(images) if image.pixels is not None}
    encoded = {row: image for row, image in enumerate(images) if image.data is not None}
    colored = any(image.jitter is not None for image in images)
    sizes = [len(image.data or b"") for image in encoded.values()]
    offsets = _array([0, *np.cumsum(sizes, dtype=np.int64)], np.int64)
    data = memory.empty((int(offsets[-1]),), np.dtype(np.uint8))
    for image, start, stop in zip(encoded.values(), offsets[:-1], offsets[1:], strict=True):
        data[start:stop] = np.frombuffer(image.data or b"", np.uint8)
    stacked = memory.empty((len(pixels), finish.height, finish.width, 3), np.dtype(np.uint8))
    for row, image_pixels in zip(stacked, pixels.values(), strict=True):
        row[...] = image_pixels
    return DeferredImages(
        finish=finish,
        flips=_array([image.flip for image in images], np.uint8),
        jitter=_array([_UNCHANGED if image.jitter is None else image.jitter for image in images], np.float32)
        if colored
        else None,
        pixel_rows=_array(list(pixels), np.int64),
        pixels=stacked,
        encoded_rows=_array(list(encoded), np.int64),
        data=data,
        offsets=offsets,
        boxes=_array([image.box for image in encoded.values()], np.float32).reshape(-1, 4),
    )


def _array(values: Sequence[Any], dtype: Any) -> NDArray[Any]:
    array = np.array(values, dtype)
    out = memory.empty(array.shape, array.dtype)
    out[...] = array
    return out


# Any: whatever the dataset returned for the image of a sample.
def _differ(finish: Finish, image: Any, place: int) -> CollateError:
    if type(image) is not DeferredImage:
        return CollateError(
            f"Sample {place} of the batch has a {type(image).__name__} where sample 0 has an image. Let the dataset "
            "return an image for every sample."
        )
    other = image.finish
    return CollateError(
        f"Samples 0 and {place} of the batch have images of {finish.height} x {finish.width} ({finish.dtype}) and "
        f"{other.height} x {other.width} ({other.dtype}), and only images of one size and type can be stacked. Let "
        "RandomResizedCrop, CenterCrop or Resize((height, width)) come last of the transforms that change the size."
    )
