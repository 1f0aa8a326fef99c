"""An unfinished image of one sample: the data so far, and the steps that remain.

These are plain numbers, so crop, flip and colours come out the same on the CPU and on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline.abc import memory
from feedline.abc.deferred import DeferredField
from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import CollateError
from feedline.images.decoding import decode_image
from feedline.images.finishing import DeferredImages
from feedline.images.geometry import Finish
from feedline.images.rendering import cut, dtype_of, finish_into
from feedline.images.steps.geometric import Erase
from feedline.images.steps.step import Step
from feedline.images.steps.tables import apply_steps, for_worker


@dataclass(slots=True)
class DeferredImage(DeferredField):
    """One image with steps that remain. It has either `pixels`, or `data`, `size` and `box`."""

    finish: Finish
    flip: bool = False
    """True if the image still has to be flipped horizontally."""
    steps: tuple[Step, ...] = ()
    """What to do with the pixels after the flip."""
    erasures: tuple[Erase, ...] = ()
    """What to erase after normalising."""
    pixels: NDArray[np.uint8] | None = None
    """8-bit values with the axes height, width and color. Steps give them the size in `finish`."""
    data: bytes | None = None
    """A JPEG file that the device can decode, with EXIF orientation 1."""
    size: tuple[int, int] | None = None
    """Width and height of the decoded image."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height of the part of the decoded image to crop, in pixels; it gets the size in `finish`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the finished image, under the name that arrays have: messages show it if shapes differ."""
        return self.finish.shape

    def for_device(self) -> DeferredImage:
        """Return the image with pixels of its final size, and steps that a device can do."""
        assert self.pixels is not None
        resize = self.pixels.shape[:2] != (self.finish.height, self.finish.width)
        count = for_worker(self.steps, resize=resize)
        if not count:
            return self
        pixels = apply_steps(self.pixels[:, ::-1] if self.flip else self.pixels, self.steps[:count])
        return DeferredImage(self.finish, False, self.steps[count:], self.erasures, pixels)

    # object: values of `dtype_of(self.finish)`.
    def finish_into(self, out: NDArray[np.generic]) -> None:
        """Write the finished image to an array of its shape."""
        pixels = self.pixels
        if pixels is None:
            assert self.data is not None
            assert self.box is not None
            pixels = cut(decode_image(self.data), self.box, self.finish.width, self.finish.height)
        finish_into(out, pixels, self.finish, flip=self.flip, steps=self.steps, erasures=self.erasures)

    @classmethod
    def collate_numpy(cls, items: Sequence[DeferredImage], where: str) -> object:
        if items[0].finish.dtype == "bfloat16" and on_this_thread.placement is Placement.COLLATE:
            raise CollateError(
                f"The images{where} are to be of bfloat16, which NumPy lacks. Use Normalize() of float32 or float16, "
                "or feedline.DataLoader, whose batches are tensors."
            )
        return collate_images(items)

    @classmethod
    def collate_torch(cls, items: Sequence[DeferredImage]) -> object:
        from feedline.frameworks.torch_tensors import tensor_of  # needs torch

        batch = collate_images(items)
        if isinstance(batch, DeferredImages):
            for name in ("flips", "pixel_rows", "pixels", "encoded_rows", "data", "offsets", "sizes", "boxes"):
                array = getattr(batch, name)
                setattr(batch, name, None if array is None else tensor_of(array))
            return batch
        tensor = tensor_of(batch)
        return tensor.bfloat16() if items[0].finish.dtype == "bfloat16" else tensor


# object: arrays of any dtype.
def collate_images(images: Sequence[DeferredImage]) -> NDArray[np.generic] | DeferredImages:
    """Return the images of a batch in the form that the placement requires: one array, or `DeferredImages`.

    A device finishes all images of a batch in the same way; if they differ in their `finish`, they are finished here.

    Arrays are in the slot of the current task, if there is one. bfloat16 images, which NumPy lacks, become float32.

    Raises:
        CollateError: the images differ in size or type.
    """
    finish = images[0].finish
    alike = True
    for place, image in enumerate(images):
        if type(image) is not DeferredImage:
            raise _differ(finish, image, place)
        if image.finish != finish:  # concatenated datasets may normalise in different ways
            if image.finish.shape != finish.shape or image.finish.dtype != finish.dtype:
                raise _differ(finish, image, place)
            alike = False
    if alike and on_this_thread.placement in (Placement.DEVICE, Placement.DECODE):
        return _together(images, finish)
    shape, dtype = (len(images), *finish.shape), dtype_of(finish)
    # With bfloat16, this array is not the batch yet, and would take space from it in the slot.
    batch = memory.empty(shape, dtype) if finish.dtype != "bfloat16" else np.empty(shape, dtype)
    for row, image in zip(batch, images, strict=True):
        image.finish_into(row)
    return batch


def _together(images: Sequence[DeferredImage], finish: Finish) -> DeferredImages:
    pixels = {row: image.pixels for row, image in enumerate(images) if image.pixels is not None}
    encoded = {row: image for row, image in enumerate(images) if image.data is not None}
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
        steps=[image.steps for image in images] if any(image.steps for image in images) else None,
        erasures=[image.erasures for image in images] if any(image.erasures for image in images) else None,
        pixel_rows=_array(list(pixels), np.int64),
        pixels=stacked,
        encoded_rows=_array(list(encoded), np.int64),
        data=data,
        offsets=offsets,
        sizes=_array([image.size for image in encoded.values()], np.int64).reshape(-1, 2),
        boxes=_array([image.box for image in encoded.values()], np.float32).reshape(-1, 4),
    )


def _array(values: Sequence[object], dtype: DTypeLike) -> NDArray[np.generic]:
    array = np.array(values, dtype)
    out = memory.empty(array.shape, array.dtype)
    out[...] = array
    return out


def _differ(finish: Finish, image: object, place: int) -> CollateError:
    if type(image) is not DeferredImage:
        return CollateError(
            f"Sample {place} of the batch has a {type(image).__name__} where sample 0 has an image. The dataset has to "
            "return an image for every sample.",
            place,
        )
    other = image.finish
    return CollateError(
        f"Samples 0 and {place} of the batch have images of {finish.height} x {finish.width} ({finish.dtype}) and "
        f"{other.height} x {other.width} ({other.dtype}), but only images of one size and type can be stacked. Make "
        "RandomResizedCrop, CenterCrop or Resize((height, width)) the last transform that changes the size.",
        place,
    )
