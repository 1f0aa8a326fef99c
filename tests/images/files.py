"""Image files of all kinds, written by Pillow and OpenCV."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH = 75, 100


def gradient() -> NDArray[np.uint8]:
    """Return pixels that differ in every place and colour, with some texture."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    noise = np.random.default_rng(0).normal(0, 8, (HEIGHT, WIDTH, 3))
    return (np.stack([x * 2.4, y * 3.2, x + y], -1) + noise).clip(0, 255).astype(np.uint8)


# Any, throughout: a Pillow image, and Pillow's options to save it.
def stored(image: Any, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format_, **options)
    return file.getvalue()


def turned(format_: str, orientation: int, **options: Any) -> bytes:
    """Return a file with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return stored(gradient(), format_, exif=exif, **options)


def in_three_scans(image: Image.Image) -> bytes:
    """Return a JPEG that is not progressive and stores one colour after the other, assembled from three grey JPEGs."""
    luma, *chroma = image.convert("YCbCr").split()
    smooth = [color.reduce(25).resize(color.size) for color in chroma]  # most bytes belong to the first scan
    grey = [stored(color, "JPEG") for color in (luma, *smooth)]
    frame, scan = (grey[0].index(marker) for marker in (b"\xff\xc0", b"\xff\xda"))
    tables = grey[0][:frame] + grey[0][frame + 13 : scan]
    size = grey[0][frame + 5 : frame + 9]
    colors = b"".join(bytes((number, 0x11, 0)) for number in (1, 2, 3))
    scans = [
        b"\xff\xda\0\x08\x01" + bytes((number, 0, 0, 63, 0)) + file[file.index(b"\xff\xda") + 10 : -2]
        for number, file in enumerate(grey, 1)
    ]
    return tables + b"\xff\xc0\0\x11\x08" + size + b"\x03" + colors + b"".join(scans) + b"\xff\xd9"


@functools.cache
def files() -> dict[str, bytes]:
    """Return files by name; each name starts with the format."""
    pixels = gradient()
    image = Image.fromarray(pixels)
    grey = image.convert("L")
    palette = image.quantize(16)
    alpha = Image.fromarray(np.dstack([pixels, pixels[..., 0]]))
    animation = {"save_all": True, "append_images": [image.rotate(180)], "duration": 100}
    return {
        "jpeg": stored(image, "JPEG"),
        "jpeg-444": stored(image, "JPEG", subsampling=0),
        "jpeg-422": stored(image, "JPEG", subsampling=1),
        "jpeg-progressive": stored(image, "JPEG", progressive=True),
        "jpeg-grey": stored(grey, "JPEG"),
        "jpeg-rgb": stored(image, "JPEG", keep_rgb=True),
        "jpeg-restarts": stored(image, "JPEG", restart_marker_blocks=3),
        "jpeg-scans": in_three_scans(image),
        "jpeg-cmyk": stored(image.convert("CMYK"), "JPEG"),
        "png": stored(image, "PNG"),
        "png-alpha": stored(alpha, "PNG"),
        "png-grey": stored(grey, "PNG"),
        "png-grey-alpha": stored(image.convert("LA"), "PNG"),
        "png-grey-transparent": stored(grey, "PNG", transparency=5),
        "png-1-bit": stored(image.convert("1"), "PNG"),
        "png-16-bits": stored((pixels[..., 0].astype(np.uint16) << 8) + 77, "PNG"),
        "png-palette": stored(palette, "PNG"),
        "png-palette-transparent": stored(palette, "PNG", transparency=bytes(range(16))),
        "png-animation": stored(image, "PNG", **animation),
        "webp": stored(image, "WEBP"),
        "webp-lossless": stored(image, "WEBP", lossless=True),
        "webp-alpha": stored(alpha, "WEBP"),
        "webp-animation": stored(image, "WEBP", **animation),
        "gif-animation": stored(image, "GIF", **animation),
        "tiff": stored(image, "TIFF"),
        "bmp": stored(image, "BMP"),
        "jpeg2000": stored(image, "JPEG2000"),
        "avif": stored(image, "AVIF"),
        "ppm": stored(image, "PPM"),
    }
