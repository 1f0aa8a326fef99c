"""Pixel operations: crop and resize, then flip, apply steps, normalise and lay out.

Resizing is bilinear with antialiasing, as in torchvision. Pillow does exactly that. OpenCV, used where it is installed,
does not antialias: before an image is reduced, it is smoothed with three taps. This takes a fifth of Pillow's time and
comes close (tests/images/test_rendering.py measures how close).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.images.geometry import Box, Finish, View
from feedline.images.steps.geometric import Erase, Warp, Window
from feedline.images.steps.step import Pixels, Step, opencv
from feedline.images.steps.tables import apply_to_last_table, looked_up
from feedline.system.optional import require


def cut(pixels: Pixels, box: Box, width: int, height: int) -> Pixels:
    """Crop an image to a box and resize it. The result may share memory with the image."""
    left, top, across, down = box
    whole = all(float(edge).is_integer() for edge in box)
    if whole:
        pixels = pixels[int(top) : int(top + down), int(left) : int(left + across)]
        if (across, down) == (width, height):
            return pixels
        left = top = 0
    cv2, box = opencv(), (left, top, across, down)
    if cv2 is None:
        return _resized_by_pillow(pixels, box, width, height)
    return _resized_by_opencv(cv2, pixels, box, width, height, whole)


def _resized_by_pillow(pixels: Pixels, box: Box, width: int, height: int) -> Pixels:
    pillow = require("PIL.Image", extra="images", purpose="Resizing images")
    left, top, across, down = box
    corners = (left, top, min(left + across, pixels.shape[1]), min(top + down, pixels.shape[0]))
    image = pillow.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), pillow.Resampling.BILINEAR, box=corners))


def _resized_by_opencv(cv2: ModuleType, pixels: Pixels, box: Box, width: int, height: int, whole: bool) -> Pixels:
    left, top, across, down = box
    reduced_x, reduced_y = max(1, int(across / width / 1.5)), max(1, int(down / height / 1.5))
    if reduced_x > 1 or reduced_y > 1:  # reduce by a whole factor, as when decoding a JPEG at a smaller size
        first_x, first_y = int(left), int(top)
        last_x = min(pixels.shape[1], math.ceil(left + across))
        last_y = min(pixels.shape[0], math.ceil(top + down))
        part = pixels[first_y:last_y, first_x:last_x]
        size = max(1, round(part.shape[1] / reduced_x)), max(1, round(part.shape[0] / reduced_y))
        x, y = size[0] / part.shape[1], size[1] / part.shape[0]
        pixels = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
        left, top, across, down = (left - first_x) * x, (top - first_y) * y, across * x, down * y
    pixels = _smoothed(cv2, pixels, across / width, down / height)
    if whole:
        return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)  # type: ignore[no-any-return]
    x, y = across / width, down / height
    steps = np.array([[x, 0, left + x / 2 - 0.5], [0, y, top + y / 2 - 0.5]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(pixels, steps, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[no-any-return]


def _smoothed(cv2: ModuleType, pixels: Pixels, across: float, down: float) -> Pixels:
    """Smooth an image that is about to be reduced by these factors, which are below 3."""
    taps = [1 if factor < 1.01 else 3 if factor <= 2 else 5 for factor in (across, down)]
    if taps == [1, 1]:
        return pixels
    if taps == [3, 3]:  # one sigma for both is close enough, and takes half the time
        across = down = math.sqrt(across * down)
    hint = (cv2.ALGO_HINT_APPROX,) if hasattr(cv2, "ALGO_HINT_APPROX") else ()
    return cv2.GaussianBlur(pixels, taps, _sigma(across), None, _sigma(down), cv2.BORDER_REPLICATE, *hint)  # type: ignore[no-any-return]


def _sigma(factor: float) -> float:
    """Return the sigma of a Gaussian after which linear interpolation comes closest to a triangle of twice the factor.

    The outer two of three taps are (1 - 1 / factor) / 2, found by experiment; at a factor of 2 this is that triangle.
    Five taps, together with the interpolation, have its variance.
    """
    if factor > 2:
        return math.sqrt((factor**2 - 1) / 6)
    return math.sqrt(-0.5 / math.log((max(factor, 1.01) - 1) / 2))


def dtype_of(finish: Finish) -> np.dtype[np.generic]:
    """Return the NumPy type of finished images; for bfloat16, which NumPy lacks, the type before rounding."""
    return np.dtype("float32" if finish.dtype == "bfloat16" else finish.dtype)


# object: a tensor of bfloat16, or the array.
def rounded(out: NDArray[np.generic], finish: Finish) -> object:
    """Return finished images in their final type: a tensor for bfloat16."""
    if finish.dtype != "bfloat16":
        return out
    torch = require("torch", extra="torch", purpose='Normalize(dtype="bfloat16")')
    return torch.from_numpy(out).bfloat16()


# object: values of `dtype_of(finish)`.
def finish_into(
    out: NDArray[np.generic],
    pixels: Pixels,
    finish: Finish,
    *,
    flip: bool = False,
    steps: Sequence[Step] = (),
    erasures: Sequence[Erase] = (),
) -> None:
    """Apply the remaining steps to an image, and write it to `out`, which has the shape of `finish`.

    The table of the last steps and the one that normalises are one pass.
    """
    cv2 = opencv()
    if flip:
        pixels = pixels[:, ::-1] if cv2 is None else cv2.flip(pixels, 1)
    pixels, table = apply_to_last_table(pixels, steps)
    if finish.mean is None:
        pixels = pixels if table is None else looked_up(pixels, table)
        out[...] = pixels.transpose(2, 0, 1) if finish.channels_first else pixels
        return
    planes = pixels.transpose(2, 0, 1) if cv2 is None else cv2.split(pixels)
    for channel, (plane, values) in enumerate(zip(planes, _tables(finish), strict=True)):
        if table is not None:
            values = values[table if table.ndim == 1 else table[channel]]
        row = out[channel] if finish.channels_first else out[:, :, channel]
        if cv2 is None:
            row[...] = values[plane]
        elif row.flags.c_contiguous and row.dtype == np.float32:
            cv2.LUT(plane, values, row)
        else:
            row[...] = cv2.LUT(plane, values)
    for erasure in erasures:
        erasure.apply_finished(out.transpose(1, 2, 0) if finish.channels_first else out)


@functools.lru_cache(maxsize=64)
def _tables(finish: Finish) -> list[NDArray[np.float32]]:
    """Return a lookup table of 256 values for each channel."""
    assert finish.mean is not None
    assert finish.std is not None
    values = np.arange(256) / 255
    return [((values - mean) / std).astype(np.float32) for mean, std in zip(finish.mean, finish.std, strict=True)]


# Any: uint8 or uint16; object: values of the dtype that the view has in the end.
def finished_grey(pixels: NDArray[Any], box: Box, view: View) -> NDArray[np.generic]:
    """Return the finished image that a view shows, whose steps only move pixels.

    Args:
        pixels: with one channel of uint8 or uint16.
        box: the part of them that the view shows.
        view: the view.
    """
    pixels = cut(pixels[..., 0], box, *view.cut_size)[..., None]
    if view.flip:
        pixels = pixels[:, ::-1]
    for step in view.steps:
        pixels = _filled(step, pixels.dtype).apply(pixels)
    finish = view.finish()
    if finish.channels_first:
        pixels = pixels.transpose(2, 0, 1)
    if finish.mean is None or finish.std is None:
        return np.array(pixels)
    out = np.empty(pixels.shape, dtype_of(finish))
    white = np.iinfo(pixels.dtype).max
    np.multiply(pixels - np.float32(white * finish.mean[0]), np.float32(1 / (white * finish.std[0])), out=out)
    return out


def _filled(step: Step, dtype: np.dtype[np.generic]) -> Step:
    """Return a step whose `fill`, from 0 to 255, is widened as 8-bit files are."""
    if dtype == np.uint16 and isinstance(step, (Warp, Window)):
        return replace(step, fill=tuple(257 * one for one in step.fill))
    return step
