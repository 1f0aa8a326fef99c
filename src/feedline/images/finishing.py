"""Finishing of images on the GPU: nvJPEG decodes them, then one kernel crops, resizes, flips and normalises.

If some image has steps, they come between that kernel and normalising: one operation for all images that need it.

nvJPEG runs on streams of its own, which do not wait for ours. So its outputs are kept until our kernels have read them:
memory that is free again on our stream could otherwise be overwritten while they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.abc.deferred import Sources
from feedline.device import nvjpeg
from feedline.errors import CorruptSource
from feedline.images.decoding import decode_image
from feedline.images.finish import Finish
from feedline.images.resampling import RaggedImages, resample, scales
from feedline.images.steps.erasing import Erase
from feedline.images.steps.sequence import apply_steps_to_batch
from feedline.images.steps.step import Step
from feedline.system.failures import words

Values = NDArray[np.generic] | torch.Tensor


class Unfinished(Protocol):
    """What is needed of `DeferredImages`, whose file imports this one."""

    finish: Finish
    flips: Values
    steps: list[tuple[Step, ...]] | None
    erasures: list[tuple[Erase, ...]] | None
    pixel_rows: Values
    pixels: Values
    encoded_rows: Values
    data: Values
    offsets: Values
    sizes: Values
    boxes: Values
    cut_sizes: list[tuple[int, int]] | None

    def __len__(self) -> int: ...


def finish(images: Unfinished, device: torch.device, sources: Sources) -> torch.Tensor:
    """Finish the images of a batch on the current stream of a device; see `DeferredBatch.finish_on`."""
    final = images.finish
    dtype = getattr(torch, final.dtype)
    if images.steps is None and images.cut_sizes is None:
        out = torch.empty((len(images), 3, final.height, final.width), dtype=dtype, device=device)
        for group in _groups(images, device, sources):
            group.cut_into(out, group.rows, final)
    else:
        out = normalised(torch.stack(_after_steps(images, device, sources)), final, dtype)
    for image, erasures in zip(out, images.erasures or (), strict=False):
        for erasure in erasures:
            erasure.apply_finished(image.permute(1, 2, 0))
    return out if final.channels_first else out.permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True)
class _Group:
    """Images that are cut to the same size."""

    rows: torch.Tensor
    """Their rows in the batch (int64)."""
    size: tuple[int, int]
    """Width and height of the cut."""
    ragged: RaggedImages
    boxes: torch.Tensor | None
    flips: torch.Tensor

    def cut_into(self, out: torch.Tensor, rows: torch.Tensor, finish: Finish | None) -> None:
        """Crop, resize and flip the images into these rows."""
        resample(self.ragged, rows, self.boxes, self.flips, out, finish)


def _groups(images: Unfinished, device: torch.device, sources: Sources) -> Iterator[_Group]:
    final, flips = images.finish, torch.as_tensor(images.flips)
    size = final.width, final.height
    if len(images.pixel_rows):
        pixels = torch.as_tensor(images.pixels)
        sources.addresses.append(pixels.data_ptr())
        on_device = pixels.to(device, non_blocking=True)
        sources.held.append(on_device)
        rows = torch.as_tensor(images.pixel_rows)
        yield _Group(rows, size, RaggedImages.of_pixels(on_device), None, flips[rows])
    if len(images.encoded_rows):
        data = torch.as_tensor(images.data)
        sources.addresses.append(data.data_ptr())
        decoded = decode(data, np.asarray(images.offsets), np.asarray(images.sizes), device)
        sources.held.append(decoded)
        rows, boxes = torch.as_tensor(images.encoded_rows), torch.as_tensor(images.boxes)
        if images.cut_sizes is None:
            yield _Group(rows, size, decoded, boxes, flips[rows])
            return
        for one in dict.fromkeys(images.cut_sizes):
            chosen = [place for place, other in enumerate(images.cut_sizes) if other == one]
            yield _Group(rows[chosen], one, decoded.chosen(chosen), boxes[chosen], flips[rows[chosen]])


def _after_steps(images: Unfinished, device: torch.device, sources: Sources) -> list[torch.Tensor]:
    """Return the images after their steps, as float32 with whole numbers from 0 to 255."""
    made: dict[int, torch.Tensor] = {}
    for group in _groups(images, device, sources):
        width, height = group.size
        out = torch.empty((len(group.rows), 3, height, width), dtype=torch.float32, device=device)
        group.cut_into(out, torch.arange(len(group.rows)), None)
        for row, image in zip(group.rows.tolist(), out.round_(), strict=True):
            made[row] = image
    return apply_steps_to_batch([made[row] for row in range(len(images))], images.steps or [()] * len(images))


def decode(
    data: torch.Tensor, offsets: NDArray[np.int64], sizes: NDArray[np.int64], device: torch.device
) -> RaggedImages:
    """Decode concatenated JPEG files, given their offsets, and the width and height of each.

    Raises:
        CorruptSource: one of them is damaged.
    """
    images = RaggedImages.of_planes(sizes, device)
    for failed in nvjpeg.decode(data, offsets, images.memory, images.layout[:, 0], sizes):
        file = data[int(offsets[failed]) : int(offsets[failed + 1])]
        images.image(failed).copy_(_decode_on_cpu(file.numpy().tobytes(), failed, images.image(failed).shape))
    return images


def _decode_on_cpu(file: bytes, number: int, shape: torch.Size) -> torch.Tensor:
    try:
        planes = torch.from_numpy(decode_image(file)).permute(2, 0, 1)
    except CorruptSource as error:
        raise CorruptSource(
            f"Encoded image {number} of a batch ({len(file)} bytes) is damaged: {words(error)}. Neither the GPU nor "
            "the CPU can decode it. With decode='cpu', the error names the file, and on_error= can skip it."
        ) from error
    assert planes.shape == shape, (planes.shape, shape)  # both are from the header
    return planes


def normalised(images: torch.Tensor, finish: Finish, dtype: torch.dtype) -> torch.Tensor:
    """Convert float images with values from 0 to 255 to their final form."""
    if dtype is torch.uint8:
        return images.round_().clamp_(0, 255).to(dtype)
    scale, shift = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in scales(finish))
    return images.mul_(scale).add_(shift).to(dtype)
