"""Pictures of Pillow with the eight bits for each value that most code expects."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline._optional import require

_WIDENED = ("PNG", "PPM")
"""Formats whose pictures of 16 bits Pillow may give values of 32 bits, which are below 65,536 nevertheless."""


# Any: images of Pillow.
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
