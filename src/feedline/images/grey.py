"""Images of one channel, of 8 or 16 bits: crop, resize, move pixels, normalise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feedline.images.decoding import Pixels
from feedline.images.geometry import Box, View
from feedline.images.rendering import cut, dtype_of
from feedline.images.steps.geometric import Warp, Window
from feedline.images.steps.step import Step


# object: values of the dtype that the view has in the end.
def finished_grey(pixels: Pixels, box: Box, view: View) -> NDArray[np.generic]:
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
