"""Pictures, decoded by Pillow: in formats that are named here or added to it, not too large, with eight bits a value.

The ways to decode them are those of the webdataset package: the same names, the same pixels. Only pictures of 16 bits
differ: that package has Pillow cut their values off at 255, which makes them white.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.errors import BadOption, CorruptSource
from feedline.images.parts import check_parts
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.types.sizes import SampleSize, check_size

# fmt: off
_FORMATS = (
    "JPEG", "PNG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "DIB", "PPM", "JPEG2000", "ICO", "TGA", "PCX", "SGI", "QOI",
)
# fmt: on
"""Formats that pictures for training have. Not EPS, for which Pillow runs Ghostscript, another program; nor those that
hardly anybody uses, and so hardly anybody tries with damaged files."""

_WIDENED = ("PNG", "PPM")
"""Formats whose pictures of 16 bits Pillow may give values of 32 bits, which are below 65,536 nevertheless."""

_PIXEL_BYTES = 4
"""What a pixel takes in Pillow, at most."""
_PIXEL_OPTION = "PIL.Image.MAX_IMAGE_PIXELS (in every process that decodes)"

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


# Any: images of Pillow.
def checked_picture(data: bytes, total: SampleSize | None = None) -> Any:
    """Return a picture that is not decoded yet, and whose size and number of parts were checked."""
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    check_parts(data)
    try:
        image = open_picture(io.BytesIO(data))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as exc:
        raise CorruptSource(f"{words(exc)}. If it is meant, raise {_PIXEL_OPTION}.") from exc
    check_pixels(image.width, image.height, len(data), total)
    return image


def check_pixels(width: int, height: int, file_bytes: int, total: SampleSize | None = None) -> None:
    """Refuse a picture that is too large, before memory is taken for it.

    Raises:
        CorruptSource: it has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, or more bytes than a sample may have.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")

    def what() -> str:
        return f"a picture of {width} x {height} pixels in a file of {file_bytes} bytes"

    check_size(what, width * height, limit=pillow.MAX_IMAGE_PIXELS, option=_PIXEL_OPTION, unit="pixels")
    (total or SampleSize()).add(what, width * height * _PIXEL_BYTES)


# Any, throughout: images of Pillow.
def open_picture(file: Any) -> Any:
    """Open a picture in a file or path as `PIL.Image.open` does, whatever its name is; its pixels are read by `load`.

    Raises PIL.UnidentifiedImageError: it is none, or of a format of Pillow's that is not among those named here;
    MissingExtra: Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    pillow.preinit()
    try:
        return pillow.open(file, formats=[name for name in _FORMATS if name in pillow.OPEN])
    except pillow.UnidentifiedImageError:
        pillow.init()  # all that are rarely used; it takes a while once
        # And those that the user's program taught Pillow, by pillow_heif for example: it knows what it does.
        taught = [name for name, (opener, _) in pillow.OPEN.items() if not str(opener.__module__).startswith("PIL.")]
        return pillow.open(file, formats=[*(name for name in _FORMATS if name in pillow.OPEN), *taught])


def eight_bits(image: Any) -> Any:
    """Return a picture of 16 bits as a grey one of 8, the upper ones; any other as it is.

    Pillow's own `convert` leaves the lower ones and makes white of everything above 255.
    """
    if not image.mode.startswith("I;16") and (image.mode != "I" or image.format not in _WIDENED):
        return image
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))


@functools.cache
def picture_decoder(spec: str) -> Callable[..., Any]:
    """Return the function that decodes images in this way, given their bytes and, if need be, their sample's size.

    Raises BadOption: there is no such way; MissingExtra: Pillow or torch is not installed.
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
