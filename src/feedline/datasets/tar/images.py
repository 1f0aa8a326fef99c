"""Images as the webdataset package decodes them: the same names, the same pixels. Pillow reads them.

Only pictures of 16 bits differ: that package has Pillow cut their values off at 255, which makes them white.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.datasets.pictures import checked_picture, eight_bits
from feedline.errors import BadOption
from feedline.values.sizes import SampleSize

# fmt: off
EXTENSIONS = frozenset((
    "blp", "bmp", "dib", "bufr", "cur", "pcx", "dcx", "dds", "ps", "eps", "fit", "fits", "fli", "flc", "ftc", "ftu",
    "gbr", "gif", "grib", "h5", "hdf", "png", "apng", "jp2", "j2k", "jpc", "jpf", "jpx", "j2c", "icns", "ico", "im",
    "iim", "tif", "tiff", "jfif", "jpe", "jpg", "jpeg", "mpg", "mpeg", "msp", "pcd", "pxr", "pbm", "pgm", "ppm",
    "pnm", "psd", "bw", "rgb", "rgba", "sgi", "ras", "tga", "icb", "vda", "vst", "webp", "wmf", "emf", "xbm", "xpm",
))
# fmt: on
"""Which fields are images: the list of the webdataset package, which is that of Pillow."""

_MODES = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}

SPECS: dict[str, tuple[str, bool, str]] = {
    **{f"{mode}8": ("numpy", False, mode) for mode in _MODES},
    **{mode: ("numpy", True, mode) for mode in _MODES},
    **{f"torch{mode}8": ("torch", False, mode) for mode in _MODES},
    **{f"torch{mode}": ("torch", True, mode) for mode in _MODES},
    "torch": ("torch", True, "rgb"),
    **{f"pil{mode}": ("pil", False, mode) for mode in _MODES},
    "pil": ("pil", False, "rgb"),
}
"""By name: what an image becomes, whether its values become numbers from 0 to 1, and its channels."""


# Any: an image of Pillow, an array or a tensor.
def image_decoder(spec: str) -> Callable[..., Any]:
    """Return the function that decodes images in this way, given their bytes and, if need be, their sample's size.

    Raises:
        BadOption: there is no such way.
        MissingExtra: Pillow or torch is not installed.
    """
    if spec not in SPECS:
        raise BadOption(f"decode={spec!r} is not one of True, False, {', '.join(map(repr, sorted(SPECS)))}.")
    kind, scaled, mode = SPECS[spec]
    pillow = require("PIL.Image", extra="images", purpose=f"decode={spec!r}")
    torch = require("torch", extra="torch", purpose=f"decode={spec!r}") if kind == "torch" else None
    wanted = _MODES[mode]

    def decode(data: bytes, total: SampleSize | None = None) -> Any:
        image = checked_picture(data, total)
        image.load()
        image = eight_bits(image)
        if image.mode != wanted:
            image = image.convert(wanted)
        if kind == "pil":
            return image.copy() if type(image) is not pillow.Image else image  # without the file it came from
        pixels = np.asarray(image)
        if scaled:
            pixels = pixels.astype(np.float32) / 255.0
        elif torch is None:
            return pixels.copy()  # Pillow's own cannot be written to, of which torch would warn
        if torch is None:
            return pixels
        return torch.from_numpy((pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels).copy())

    return decode
