"""An image as it was passed to a pipeline: the bytes of a file, or pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.images.decoding import CHANNELS, Pixels, decode_image
from feedline.images.geometry import Box, View
from feedline.images.header import file_bytes, read_header
from feedline.images.medium import is_encoded
from feedline.images.pillow import converted
from feedline.system.optional import is_tensor


class Original:
    """An image whose size is known, and which is decoded when its pixels are needed.

    Args:
        image: the bytes of a file, an array, a tensor, or a Pillow image.
        mode: as for `decode_image`.
    """

    def __init__(self, image: object, mode: str) -> None:
        self.mode = mode
        self.data: bytes | None = None
        """The file; None if the image came as pixels."""
        self._pixels: Pixels | None = None
        self._factor = 1
        if is_encoded(image):
            self.data = file_bytes(image)
            self.header = read_header(self.data)
            self.size = self.header.width, self.header.height
        else:
            self._pixels = pixels_of(image, mode)
            self.size = self._pixels.shape[1], self._pixels.shape[0]

    @property
    def is_for_gpu(self) -> bool:
        """True if a GPU can decode the file."""
        return self.data is not None and self.header.gpu and self.mode == "RGB"

    def decode_for(self, views: Sequence[View]) -> None:
        """Decode the parts of the image that these views show, once, and as small as possible; keep them."""
        if self._pixels is None:
            self._pixels, self._factor = self._decoded(views)

    def part(self, view: View) -> tuple[Pixels, Box]:
        """Return pixels, and which part of them a view shows.

        Unless `decode_for` has kept them, they are not kept: their memory, which the system has already provided, then
        serves the finished image.
        """
        pixels, factor = (self._pixels, self._factor) if self._pixels is not None else self._decoded([view])
        if pixels.shape[1] == self.size[0]:
            return pixels, view.box
        left, top, width, height = view.box
        # The last pixel of a row or column stands for the rest, less than `factor` pixels. Upright, it may be first.
        left += -self.size[0] % factor if self.header.orientation in (2, 3, 6, 7) else 0
        top += -self.size[1] % factor if self.header.orientation in (3, 4, 7, 8) else 0
        return pixels, (left / factor, top / factor, width / factor, height / factor)

    def _decoded(self, views: Sequence[View]) -> tuple[Pixels, int]:
        assert self.data is not None
        factor = min(view.factor for view in views)
        rows = max(math.ceil(view.box[1] + view.box[3]) for view in views) + 2 * factor
        return decode_image(self.data, mode=self.mode, header=self.header, factor=factor, rows=rows), factor


# Any: any value from the user.
def pixels_of(image: Any, mode: str = "RGB") -> Pixels:
    """Return an image that is not encoded as an array with the axes height, width and channel.

    Raises:
        BadOption: it is not an image.
    """
    if is_tensor(image):
        image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    elif hasattr(image, "getbands") and hasattr(image, "convert"):  # a Pillow image
        image = converted(image.copy(), mode)
    dtypes = (np.uint8, np.uint16) if mode == "I;16" else (np.uint8,)
    if not isinstance(image, np.ndarray) or image.dtype not in dtypes or image.ndim not in (2, 3) or not image.size:
        raise _no_image(image, mode)
    pixels: Pixels = image if image.ndim == 3 else image[:, :, None]
    if mode == "I;16" and pixels.dtype == np.uint8:
        pixels = pixels * np.uint16(257)
    channels = pixels.shape[2]
    if channels == CHANNELS[mode]:
        return pixels
    if mode == "RGB" and channels in (1, 4):
        return np.repeat(pixels, 3, axis=2) if channels == 1 else pixels[:, :, :3]
    raise BadOption(
        f"The image has the shape {pixels.shape}, but its last axis should be color, with {CHANNELS[mode]} values. If "
        "the channel is the first axis, use array.transpose(1, 2, 0)."
    )


def _no_image(image: object, mode: str) -> BadOption:
    what = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
    if isinstance(image, np.ndarray) and image.dtype == np.uint16:
        advice = 'Put Decode("I;16") first to keep 16 bits.'
    elif isinstance(image, (str, os.PathLike)):
        advice = "Read the file first: pathlib.Path(...).read_bytes(). ImageFolder and FileDataset do so for you."
    else:
        wanted = "a uint16 or uint8 array" if mode == "I;16" else "a uint8 array"
        advice = (
            f"It takes the bytes of an image file, {wanted} with the axes height, width and color, or a Pillow image."
        )
    return BadOption(f"A transform of feedline.images was given {what}. {advice}")
