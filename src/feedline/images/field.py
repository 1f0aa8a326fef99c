"""Which field of a sample is the image."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping

import numpy as np

from feedline.errors import SourceError
from feedline.images.fields import Medium, is_encoded, is_file
from feedline.images.jxl import CODESTREAM, CONTAINER
from feedline.system.optional import is_tensor

_BEGINNINGS = (
    b"\xff\xd8\xff",
    b"\x89PNG",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP",
    b"\xff\x4f\xff\x51",
    b"P5",
    b"P6",
    b"qoif",
    CODESTREAM,
    CONTAINER,
)
"""The first bytes of image files: JPEG, PNG, GIF, BMP, TIFF, JPEG 2000, PPM, QOI, JPEG XL."""
_SHARED = re.compile(rb"RIFF....WEBP|....ftyp(avi[fs]|hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)
"""The first bytes of WebP, AVIF and HEIF, whose containers also hold sound and video."""


def image_field(sample: object, field: Hashable = None, others: Collection[object] = ()) -> Hashable:
    r"""Return the field of a sample that holds an image; None if the sample is the image itself.

    Args:
        sample: an image, or a dict, tuple or list with an image in one field.
        field: the field to use, if known.
        others: fields that may look like an image, and are not: masks.

    Raises:
        BadOption: there is no such field, or not exactly one field holds an image.

    Example:
        >>> image_field({"gif": b"GIF89a...", "cls": 3})
        'gif'
    """
    return _IMAGE.field_of(sample, field, others)


def is_image(value: object) -> bool:
    """True for the bytes of an image file, 8-bit pixels, a Pillow image, or an image of Hugging Face with its bytes."""
    if isinstance(value, (int, float, str)):
        return False
    if is_encoded(value):
        head = bytes(value[:12])
        return head.startswith(_BEGINNINGS) or _SHARED.match(head) is not None
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim in (2, 3)
    if isinstance(value, Mapping):
        return is_file(value)
    if isinstance(value, list):
        return bool(value) and is_image(value[0])
    return hasattr(value, "getbands") or (is_tensor(value) and getattr(value, "ndim", 0) == 3)


_IMAGE = Medium(
    "an image",
    "images",
    (is_image,),
    is_file,
    "Choose the one to transform with Compose(...).on(name), or leave out others with fields=.",
)


# object: the values of a struct.
def stored_bytes(value: Mapping[object, object]) -> object:
    """Return the bytes of an image as Hugging Face stores it. They may be left in a file, whose path it has.

    Raises:
        SourceError: the file cannot be read.
    """
    data, path = value["bytes"], value["path"]
    if data is not None or not isinstance(path, str):
        return data
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise SourceError(
            f"An image is stored as the path of its file, {path!r}, which cannot be read: {exc.strerror or exc}."
        ) from exc
