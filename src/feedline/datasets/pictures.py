"""Pictures of Pillow: opened in formats that are named here, with eight bits for each value, as most code expects."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline._optional import require

_FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "AVIF",
    "GIF",
    "TIFF",
    "BMP",
    "DIB",
    "PPM",
    "JPEG2000",
    "ICO",
    "TGA",
    "PCX",
    "SGI",
    "QOI",
)
"""Formats that pictures for training have. Not EPS, for which Pillow runs Ghostscript, another program; nor those that
hardly anybody uses, and so hardly anybody tries with damaged files."""

_WIDENED = ("PNG", "PPM")
"""Formats whose pictures of 16 bits Pillow may give values of 32 bits, which are below 65,536 nevertheless."""


# Any, throughout: images of Pillow.
def open_picture(file: Any) -> Any:
    """Open a picture in a file or path as `PIL.Image.open` does, whatever its name is; its pixels are read by `load`.

    Raises:
        PIL.UnidentifiedImageError: it is none, or of a format that is not among those named here.
        MissingExtra: Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    pillow.preinit()
    try:
        return pillow.open(file, formats=_known(pillow))
    except pillow.UnidentifiedImageError:
        pillow.init()  # all that are rarely used; it takes a while once
        return pillow.open(file, formats=_known(pillow))


def _known(pillow: Any) -> list[str]:
    return [name for name in _FORMATS if name in pillow.OPEN]


def eight_bits(image: Any) -> Any:
    """Return a picture of 16 bits as a grey one of 8, the upper ones; any other as it is.

    Pillow's own `convert` leaves the lower ones and makes white of everything above 255.

    Example:
        >>> from PIL import Image
        >>> deep = Image.fromarray(np.array([[0, 300, 65535]], np.uint16))
        >>> list(deep.convert("L").tobytes()), list(eight_bits(deep).tobytes())
        ([0, 255, 255], [0, 1, 255])
    """
    if not image.mode.startswith("I;16") and (image.mode != "I" or image.format not in _WIDENED):
        return image
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
