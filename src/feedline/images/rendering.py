"""Pixel operations: crop and resize, then flip, change colours, normalise and lay out.

Resizing is bilinear with antialiasing, as in torchvision. Pillow does exactly that. OpenCV, used where it is installed,
does not antialias: before an image is reduced, it is smoothed with three taps. This takes a fifth of Pillow's time and
comes close (tests/images/test_rendering.py measures how close).
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import MissingExtra
from feedline.images.finish import Finish
from feedline.images.geometry import Box
from feedline.system.optional import require

Pixels = NDArray[np.uint8]
"""With the axes height, width and color."""
Planes = NDArray[np.float32]
"""With the axes color, height and width."""


# Any, throughout: the module; None if it is not installed.
def _opencv() -> Any:
    return _opencv_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _opencv_of(process: int) -> object:
    try:
        cv2 = require("cv2", extra="images", purpose="Resizing images")
    except MissingExtra:
        return None
    if multiprocessing.parent_process() is not None:
        cv2.setNumThreads(0)  # the workers provide the parallelism, and a fork has no threads of OpenCV
    return cv2


def cut(pixels: Pixels, box: Box, width: int, height: int) -> Pixels:
    """Crop an image to a box and resize it. The result may share memory with the image."""
    left, top, across, down = box
    whole = all(float(edge).is_integer() for edge in box)
    if whole:
        pixels = pixels[int(top) : int(top + down), int(left) : int(left + across)]
        if (across, down) == (width, height):
            return pixels
        left = top = 0
    resize = _resized_by_pillow if _opencv() is None else _resized_by_opencv
    return resize(pixels, (left, top, across, down), width, height, whole)


def _resized_by_pillow(pixels: Pixels, box: Box, width: int, height: int, whole: bool) -> Pixels:
    pillow = require("PIL.Image", extra="images", purpose="Resizing images")
    left, top, across, down = box
    corners = (left, top, min(left + across, pixels.shape[1]), min(top + down, pixels.shape[0]))
    image = pillow.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), pillow.Resampling.BILINEAR, box=corners))


def _resized_by_opencv(pixels: Pixels, box: Box, width: int, height: int, whole: bool) -> Pixels:
    cv2 = _opencv()
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


# object: values of `dtype_of(finish)`.
def finish_into(
    out: NDArray[np.generic], pixels: Pixels, finish: Finish, *, flip: bool, jitter: NDArray[np.float32] | None
) -> None:
    """Apply the remaining steps to an image, and write it to `out`, which has the shape of `finish`."""
    if jitter is not None:
        _finish_colored(out, pixels[:, ::-1] if flip else pixels, finish, jitter)
        return
    cv2 = _opencv()
    if flip:
        pixels = pixels[:, ::-1] if cv2 is None else cv2.flip(pixels, 1)
    if finish.mean is None:
        out[...] = pixels.transpose(2, 0, 1) if finish.channels_first else pixels
        return
    planes = pixels.transpose(2, 0, 1) if cv2 is None else cv2.split(pixels)
    for channel, (plane, table) in enumerate(zip(planes, _tables(finish), strict=True)):
        row = out[channel] if finish.channels_first else out[:, :, channel]
        if cv2 is None:
            row[...] = table[plane]
        elif row.flags.c_contiguous and row.dtype == np.float32:
            cv2.LUT(plane, table, row)
        else:
            row[...] = cv2.LUT(plane, table)


@functools.lru_cache(maxsize=64)
def _tables(finish: Finish) -> list[NDArray[np.float32]]:
    """Return a lookup table of 256 values for each channel."""
    assert finish.mean is not None
    assert finish.std is not None
    values = np.arange(256) / 255
    return [((values - mean) / std).astype(np.float32) for mean, std in zip(finish.mean, finish.std, strict=True)]


def _finish_colored(out: NDArray[np.generic], pixels: Pixels, finish: Finish, jitter: NDArray[np.float32]) -> None:
    planes = colored(np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32), jitter)
    if finish.mean is None:
        np.rint(planes, out=planes)
    else:
        assert finish.std is not None
        for plane, mean, std in zip(planes, finish.mean, finish.std, strict=True):
            plane -= 255 * mean
            plane *= 1 / (255 * std)
    out[...] = planes if finish.channels_first else planes.transpose(1, 2, 0)


def colored(planes: Planes, jitter: NDArray[np.float32]) -> Planes:
    """Change the colours of an image with values from 0 to 255, in place, by a draw of `ColorJitter`."""
    for change in jitter[4:].astype(int).tolist():
        factor = float(jitter[change])
        if change == 3:
            if factor != 0:
                _turn_hue(planes, factor)
        elif factor != 1:
            other = 0 if change == 0 else _grey(planes) if change == 2 else _grey(planes).mean()
            planes *= factor
            planes += (1 - factor) * other
            np.clip(planes, 0, 255, out=planes)
    return planes


def _grey(planes: Planes) -> Planes:
    grey: Planes = 0.2989 * planes[0]
    grey += 0.587 * planes[1]
    grey += 0.114 * planes[2]
    return grey


def _turn_hue(planes: Planes, turn: float) -> None:
    """Add `turn` to the hue, which ranges from 0 to 1. The largest and smallest value of a pixel stay the same."""
    red, green, blue = planes
    most = np.maximum(np.maximum(red, green), blue)
    spread = most - np.minimum(np.minimum(red, green), blue)
    is_red, is_green = most == red, most == green
    hue = np.where(is_red, green - blue, np.where(is_green, blue - red, red - green))
    hue /= np.maximum(spread, 1e-6)
    hue += np.where(is_red, np.float32(0), np.where(is_green, np.float32(2), np.float32(4)))
    hue += 6 * turn  # in sixths of the circle
    for plane, offset in zip(planes, (5, 3, 1), strict=True):
        sixth = hue + np.float32(offset)
        sixth -= 6 * np.floor(sixth * np.float32(1 / 6))  # the remainder, twenty times as fast as NumPy's own
        np.minimum(sixth, 4 - sixth, out=sixth)
        np.clip(sixth, 0, 1, out=sixth)
        sixth *= spread
        np.subtract(most, sixth, out=plane)
