"""One kernel for a whole batch of images of different sizes: crop, antialiased resize, flip, normalise, change dtype.

The filter is the antialiased bilinear one of Pillow and torchvision: a triangle as wide as the step from one pixel of
the result to the next. Rows are resampled along x, then summed along y, so each source pixel is read about twice.

Without Triton, torch's own functions do the same image by image.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.images.geometry import Finish

_ROWS = 4
"""Rows of the result that one program of the kernel computes."""
_ALIGNMENT = 256
"""Bytes: every image begins at a multiple."""


@dataclass(frozen=True)
class RaggedImages:
    """uint8 images of any sizes, all in one block of memory on the device."""

    memory: torch.Tensor
    """One axis of bytes."""
    layout: NDArray[np.int64]
    """For each image its offset, height, width, and the strides of row, column and color."""

    @classmethod
    def of_pixels(cls, pixels: torch.Tensor) -> RaggedImages:
        """Images of one size with the axes image, height, width, color."""
        count, height, width, colors = pixels.shape
        layout = np.empty((count, 6), np.int64)
        layout[:, 0] = np.arange(count) * (height * width * colors)
        layout[:, 1:] = height, width, width * colors, colors, 1
        return cls(pixels.reshape(-1), layout)

    @classmethod
    def of_planes(cls, sizes: NDArray[np.int64], device: torch.device) -> RaggedImages:
        """Uninitialised images of these widths and heights, with the axes color, height, width."""
        areas = sizes[:, 0] * sizes[:, 1]
        room = -(-3 * areas // _ALIGNMENT) * _ALIGNMENT
        ends = np.cumsum(room)
        layout = np.stack([ends - room, sizes[:, 1], sizes[:, 0], sizes[:, 0], np.ones_like(areas), areas], 1)
        return cls(torch.empty(int(room.sum()), dtype=torch.uint8, device=device), layout)

    def __len__(self) -> int:
        return len(self.layout)

    def image(self, number: int) -> torch.Tensor:
        """Return one image, with the axes color, height, width."""
        offset, height, width, row, column, color = self.layout[number].tolist()
        return self.memory.as_strided((3, height, width), (color, row, column), offset)


def resample(
    sources: RaggedImages,
    rows: torch.Tensor,
    boxes: torch.Tensor | None,
    flips: torch.Tensor,
    out: torch.Tensor,
    finish: Finish | None,
) -> None:
    """Write each source into its row of `out`, on the current stream.

    Args:
        sources: the images.
        rows: the row of `out` for each of them.
        boxes: left, top, width and height of the part to use of each, in pixels; None for all of it.
        flips: 1 for those to flip horizontally.
        out: the batch (image, color, height, width).
        finish: how to normalise values; None for values from 0 to 255.
    """
    if boxes is None:
        boxes = torch.zeros((len(sources), 4))
        boxes[:, 2:] = torch.from_numpy(sources.layout[:, [2, 1]])
    if out.is_cuda and has_triton():
        _with_triton(sources, rows, boxes, flips, out, finish)
    else:
        _with_torch(sources, rows, boxes, flips, out, finish)


@functools.cache
def has_triton() -> bool:
    """True if Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def scales(finish: Finish | None) -> tuple[list[float], list[float]]:
    """Return the factor to multiply each color by, and the amount to add afterwards."""
    if finish is None or finish.mean is None or finish.std is None:
        return [1.0] * 3, [0.0] * 3
    return [1 / (255 * std) for std in finish.std], [-m / s for m, s in zip(finish.mean, finish.std, strict=True)]


def normalised(images: torch.Tensor, finish: Finish, dtype: torch.dtype) -> torch.Tensor:
    """Convert float images with values from 0 to 255 to their final form."""
    if dtype is torch.uint8:
        return images.round_().clamp_(0, 255).to(dtype)
    scale, shift = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in scales(finish))
    return images.mul_(scale).add_(shift).to(dtype)


def _with_torch(
    sources: RaggedImages,
    rows: torch.Tensor,
    boxes: torch.Tensor,
    flips: torch.Tensor,
    out: torch.Tensor,
    finish: Finish | None,
) -> None:
    scale, shift = (torch.tensor(values, device=out.device).view(3, 1, 1) for values in scales(finish))
    for number, (row, box, flip) in enumerate(zip(rows.tolist(), boxes.tolist(), flips.tolist(), strict=True)):
        planes = sources.image(number)
        left, top, width, height = box
        columns, across = _weights(left, width, planes.shape[-1], out.shape[-1], out.device)
        lines, down = _weights(top, height, planes.shape[-2], out.shape[-2], out.device)
        made = down @ planes[:, lines, columns].float() @ across.T
        made = (made.flip(-1) if flip else made) * scale + shift
        out[row] = made.round().clamp(0, 255).to(out.dtype) if out.dtype is torch.uint8 else made.to(out.dtype)


def _weights(start: float, length: float, count: int, size: int, device: torch.device) -> tuple[slice, torch.Tensor]:
    """Return which pixels of a line lie at least partly in a box, and their weights in each of the `size` new pixels.

    A box may begin and end anywhere in a pixel. Pixels outside it are cropped before resizing.
    """
    first, last = max(math.floor(start), 0), min(math.ceil(start + length), count)
    scale = length / size
    centers = start + (torch.arange(size, device=device) + 0.5) * scale
    distances = torch.arange(first, last, device=device) + 0.5 - centers[:, None]
    weights = (1 - distances.abs() / max(scale, 1.0)).clamp(min=0)
    return slice(first, last), weights / weights.sum(1, keepdim=True)


def _with_triton(
    sources: RaggedImages,
    rows: torch.Tensor,
    boxes: torch.Tensor,
    flips: torch.Tensor,
    out: torch.Tensor,
    finish: Finish | None,
) -> None:
    from feedline.images.resampling_kernel import kernel

    count, (height, width) = len(sources), out.shape[-2:]
    # Send one small table instead of five tensors.
    table = torch.empty((count, 12), dtype=torch.int64, pin_memory=True)
    table[:, :6] = torch.from_numpy(sources.layout)
    table[:, 0] += sources.memory.data_ptr()
    table[:, 6], table[:, 7] = rows, flips
    table[:, 8:] = boxes.float().contiguous().view(torch.int32)
    on_device = table.to(out.device, non_blocking=True)
    scale, shift = scales(finish)
    block = 1 << (width - 1).bit_length()
    grid = (count, -(-height // _ROWS))
    launch: Any = kernel[grid]
    launch(
        on_device,
        out,
        *out.stride(),
        height,
        width,
        *scale,
        *shift,
        IS_BYTES=out.dtype is torch.uint8,
        ROWS=_ROWS,
        COLUMNS=block,
        num_warps=max(2, block // 128),
    )
