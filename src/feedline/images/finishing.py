"""Finishing of images on the GPU: nvJPEG decodes them, then one kernel crops, resizes, flips and normalises.

nvJPEG runs on streams of its own, which do not wait for ours. So its outputs are kept until our kernels have read them:
memory that is free again on our stream could otherwise be overwritten while they read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.abc.deferred import Sources
from feedline.device import nvjpeg
from feedline.errors import CorruptSource
from feedline.images.decoding import decode_image
from feedline.images.finish import Finish
from feedline.images.resampling import RaggedImages, resample, scales
from feedline.system.failures import words


# Any: a `DeferredImages`, whose file imports this one.
def finish(images: Any, device: torch.device, sources: Sources) -> torch.Tensor:
    """Finish the images of a batch on the current stream of a device; see `DeferredBatch.finish_on`."""
    final = images.finish
    dtype = getattr(torch, final.dtype)
    colours = None if images.jitter is None else torch.as_tensor(images.jitter)
    made = torch.float32 if colours is not None else dtype
    out = torch.empty((len(images), 3, final.height, final.width), dtype=made, device=device)
    flips = torch.as_tensor(images.flips)
    plain = final if colours is None else None
    if len(images.pixel_rows):
        pixels = torch.as_tensor(images.pixels)
        sources.addresses.append(pixels.data_ptr())
        on_device = pixels.to(device, non_blocking=True)
        sources.held.append(on_device)
        rows = torch.as_tensor(images.pixel_rows)
        resample(RaggedImages.of_pixels(on_device), rows, None, flips[rows], out, plain)
    if len(images.encoded_rows):
        data = torch.as_tensor(images.data)
        sources.addresses.append(data.data_ptr())
        decoded = decode(data, np.asarray(images.offsets), np.asarray(images.sizes), device)
        sources.held.append(decoded)
        rows = torch.as_tensor(images.encoded_rows)
        resample(decoded, rows, torch.as_tensor(images.boxes), flips[rows], out, plain)
    if colours is not None:
        out = normalised(jittered(out, colours), final, dtype)
    return out if final.channels_first else out.permute(0, 2, 3, 1).contiguous()


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


_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


def jittered(images: torch.Tensor, jitter: torch.Tensor) -> torch.Tensor:
    """Change the colours of images with values from 0 to 255 (image, color, height, width), in place.

    Args:
        images: of float32.
        jitter: four factors for each image, and their order; in host memory.
    """
    factors, order = jitter[:, :4], jitter[:, 4:].long()
    for step in range(order.shape[1]):
        for change in range(4):
            chosen = (order[:, step] == change).nonzero().flatten()
            neutral = 0.0 if change == _HUE else 1.0
            chosen = chosen[factors[chosen, change] != neutral]
            if len(chosen):
                rows = chosen.to(images.device, non_blocking=True)
                factor = factors[chosen, change].view(-1, 1, 1, 1).to(images.device, non_blocking=True)
                images[rows] = _changed(images[rows], change, factor)
    return images


def _changed(images: torch.Tensor, change: int, factor: torch.Tensor) -> torch.Tensor:
    if change == _HUE:
        return _turned(images, factor)
    if change == _BRIGHTNESS:
        return (images * factor).clamp_(0, 255)
    grey = 0.2989 * images[:, 0:1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:3]
    other = grey.mean((2, 3), keepdim=True) if change == _CONTRAST else grey
    return (images * factor).add_((1 - factor) * other).clamp_(0, 255)


def _turned(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Add `turn` to the hue, which ranges from 0 to 1. The largest and smallest value of a pixel stay the same."""
    red, green, blue = images.unbind(1)
    most = images.amax(1)
    spread = most - images.amin(1)
    is_red = most == red
    is_green = ~is_red & (most == green)
    hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    hue = torch.where(spread > 0, hue / spread, 0.0)
    # In sixths of the circle.
    hue += torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)) + 6 * turn.view(-1, 1, 1)
    planes = []
    for offset in (5, 3, 1):
        sixth = torch.remainder(hue + offset, 6)
        planes.append(most - torch.minimum(sixth, 4 - sixth).clamp_(0, 1) * spread)
    return torch.stack(planes, 1)
