"""Decoding of images with Pillow: formats listed here or added by the program, limited in size, 8 bits per value.

The decoders have the names of those of the webdataset package, and return the same pixels. Only 16-bit images differ:
that package has Pillow clip their values at 255, which makes them white.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, CorruptSource, FeedlineError, MissingExtra
from feedline.images.jxl import is_jxl, jxl_pixels, jxl_size
from feedline.images.parts import check_parts
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.sizes import SampleSize, check_size

if TYPE_CHECKING:
    from PIL.Image import Image

# fmt: off
_FORMATS = (
    "JPEG", "PNG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "DIB", "PPM", "JPEG2000", "ICO", "TGA", "PCX", "SGI", "QOI",
)
# fmt: on
"""Formats of training images. EPS is missing because Pillow runs Ghostscript, another program, for it. So are formats
that are rarely used, and hence rarely tested with damaged files.
"""

_WIDENED = ("PNG", "PPM")
"""Formats whose 16-bit images Pillow may return as 32-bit values, which are still below 65,536."""

_PIXEL_BYTES = 4
"""Maximum size of a pixel in Pillow."""
_PIXEL_OPTION = "PIL.Image.MAX_IMAGE_PIXELS (in every process that decodes)"

# fmt: off
EXTENSIONS = frozenset((
    "blp", "bmp", "dib", "bufr", "cur", "pcx", "dcx", "dds", "ps", "eps", "fit", "fits", "fli", "flc", "ftc", "ftu",
    "gbr", "gif", "grib", "h5", "hdf", "png", "apng", "jp2", "j2k", "jpc", "jpf", "jpx", "j2c", "icns", "ico", "im",
    "iim", "tif", "tiff", "jfif", "jpe", "jpg", "jpeg", "mpg", "mpeg", "msp", "pcd", "pxr", "pbm", "pgm", "ppm",
    "pnm", "psd", "bw", "rgb", "rgba", "sgi", "ras", "tga", "icb", "vda", "vst", "webp", "wmf", "emf", "xbm", "xpm",
    "avif", "jxl",
))
# fmt: on
"""Extensions of image fields: the list of the webdataset package, which is an older one of Pillow's; and two more."""

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
"""By name: the type of the decoded image, whether values are scaled to 0 to 1, and the channels."""


def checked_picture(data: bytes, total: SampleSize | None = None) -> Image:
    """Open an image without decoding it, and check its size and number of parts. A JPEG XL is decoded after that."""
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    if is_jxl(data):
        check_pixels(*jxl_size(data), len(data), total)
        return open_jxl(data)
    check_parts(data)
    try:
        image = open_picture(io.BytesIO(data))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as exc:
        raise CorruptSource(f"{words(exc)}. If it is intended, raise {_PIXEL_OPTION}.") from exc
    check_pixels(image.width, image.height, len(data), total)
    return image


def check_pixels(width: int, height: int, file_bytes: int, total: SampleSize | None = None) -> None:
    """Reject an image that is too large, before memory is allocated for it.

    Raises:
        CorruptSource: it has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, or more bytes than a sample may have.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")

    def what() -> str:
        return f"an image of {width} x {height} pixels in a file of {file_bytes} bytes"

    check_size(what, width * height, limit=pillow.MAX_IMAGE_PIXELS, option=_PIXEL_OPTION, unit="pixels")
    (total or SampleSize()).add(what, width * height * _PIXEL_BYTES)


def open_picture(file: object) -> Image:
    """Open an image as `PIL.Image.open` does, ignoring the file name; `load` reads its pixels.

    Raises PIL.UnidentifiedImageError if it is not an image, or in a format of Pillow's that is not listed here;
    MissingExtra if Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    pillow.preinit()
    try:
        image = _opened(file, ())
    except pillow.UnidentifiedImageError:
        pillow.init()  # loads the rarely used formats, which takes a while once
        # Also accept formats that the user's program added to Pillow on purpose, for example with pillow_heif.
        added = [name for name, (opener, _) in pillow.OPEN.items() if not str(opener.__module__).startswith("PIL.")]
        image = _opened(file, added)
    return image


def open_jxl(data: bytes) -> Image:
    """Decode a JPEG XL with imagecodecs, or with a plugin that the program added to Pillow. Check its size first.

    Raises CorruptSource if it is damaged, MissingExtra if neither is installed.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    try:
        image: Image = pillow.fromarray(jxl_pixels(data))
    except MissingExtra:
        try:
            return open_picture(io.BytesIO(data))
        except pillow.UnidentifiedImageError:
            pass
        raise
    image.format = "JXL"
    return image


def _opened(file: object, added: Sequence[str]) -> Image:
    """Open an image in one of the formats listed here, or those that were added.

    AVIF files are opened for decoding with one thread, because the workers provide the parallelism. Pillow starts one
    for each core otherwise, which takes longer even alone for an image of 500 x 375. Its only option is global. If two
    threads come here at once, one of their images may be decoded with several threads.
    """
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    plugin: Any = sys.modules.get("PIL.AvifImagePlugin")  # Any: the module, or None
    automatic = getattr(plugin, "DEFAULT_MAX_THREADS", None) == 0  # anything else is the user's own choice
    if automatic:
        plugin.DEFAULT_MAX_THREADS = 1
    try:
        formats = [*(name for name in _FORMATS if name in pillow.OPEN), *added]
        return pillow.open(file, formats=formats)  # type: ignore[no-any-return]
    finally:
        if automatic:
            plugin.DEFAULT_MAX_THREADS = 0


def eight_bits(image: Image) -> Image:
    """Convert a 16-bit image to 8-bit grey, keeping the upper bits; return any other as it is.

    Pillow's own `convert` clips instead, so everything above 255 becomes white.
    """
    if not image.mode.startswith("I;16") and (image.mode != "I" or image.format not in _WIDENED):
        return image
    pillow = require("PIL.Image", extra="images", purpose="Decoding pictures")
    narrowed: Image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return narrowed


def converted(image: Image, mode: str) -> NDArray[np.uint8 | np.uint16]:
    """Return the pixels of a loaded image with the axes height, width and channel, in memory of their own.

    Args:
        image: the image.
        mode: "RGB", "L" or "I;16", as for `decode_image`. Colours and 8-bit values stay 8-bit values with "I;16".

    Raises:
        CorruptSource: the mode is "I;16", but values are negative, above 65,535 or not integers.
    """
    image.info.pop("transparency", None)  # Pillow would warn about dropping it
    if mode == "I;16":
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            return _sixteen_bits(np.asarray(image))[..., None]
        mode = "L"
    image = eight_bits(image)
    pixels = np.array(image if image.mode == mode else image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _sixteen_bits(values: NDArray[np.number]) -> NDArray[np.uint16]:
    with np.errstate(invalid="ignore"):
        narrowed = values.astype(np.uint16)
    if values.dtype != np.uint16 and not np.array_equal(narrowed, values):
        raise CorruptSource(
            f'Values from {values.min()} to {values.max()} ({values.dtype}) do not fit in mode="I;16", which keeps '
            "integers from 0 to 65,535. Convert the file, or decode it with a function of your own."
        )
    return narrowed


@functools.cache
def picture_decoder(spec: str) -> Callable[..., object]:
    """Return the decoder of this name: a function of the file's bytes and, optionally, the size of the sample.

    Raises BadOption if there is no such decoder, MissingExtra if Pillow or torch is not installed.
    """
    if spec not in SPECS:
        raise BadOption(f"decode={spec!r} is not one of True, False, {', '.join(map(repr, sorted(SPECS)))}.")
    kind, scaled, mode = SPECS[spec]
    pillow = require("PIL.Image", extra="images", purpose=f"decode={spec!r}")
    torch = require("torch", extra="torch", purpose=f"decode={spec!r}") if kind == "torch" else None
    wanted = _MODES[mode]

    def decode(data: bytes, total: SampleSize | None = None) -> object:
        image = checked_picture(data, total)
        image.load()
        image = eight_bits(image)
        if image.mode != wanted:
            image = image.convert(wanted)
        if kind == "pil":
            return image.copy() if type(image) is not pillow.Image else image  # drops the reference to its file
        pixels = np.asarray(image)
        if scaled:
            pixels = pixels.astype(np.float32) / 255.0
        elif torch is None:
            return pixels.copy()  # Pillow's array is read-only, and torch would warn
        if torch is None:
            return pixels
        return torch.from_numpy((pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels).copy())

    return decode


def decoded_picture(decode: Callable[[bytes], object], data: bytes) -> object:
    """Return what a decoder makes of the bytes of an image.

    Raises CorruptSource: they are damaged, no image, or one that is too large; MissingExtra: a package is missing.
    """
    try:
        return decode(data)
    except FeedlineError:
        raise
    # Pillow's plugins raise many kinds of errors for a damaged file: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        raise CorruptSource(
            f"Pillow cannot decode it as an image: {type(exc).__name__}: {words(exc)}. It is damaged, cut off, not an "
            "image, or in an unsupported format, such as EPS."
        ) from exc
