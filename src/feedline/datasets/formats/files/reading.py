"""How a file becomes a value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.tar.arrays import decode_npy
from feedline.errors import BadOption, CorruptSource
from feedline.images.decoding import decode_image
from feedline.images.pillow import picture_decoder
from feedline.system.failures import add_note, words
from feedline.system.optional import require

Read = Callable[[str], object]
"""Takes a path and returns a value."""


def reader(read: str | Read) -> Read:
    """Return the function for `read=` of a `FileDataset`. Raises BadOption: `read` is unknown."""
    if callable(read):
        return functools.partial(_by_user, read, None)
    known: dict[str, Read] = {"bytes": read_bytes, "text": read_text, "npy": read_npy}
    if read not in known:
        raise BadOption(
            f"read={read!r} is neither one of {', '.join(map(repr, known))} nor a function that takes a path."
        )
    return known[read]


def decoder(decode: str | Callable[[bytes], object]) -> Read:
    """Return the function for `decode=` of an `ImageFolder`.

    Raises BadOption: `decode` is unknown; MissingExtra: it needs Pillow, which is not installed.
    """
    if callable(decode):
        return functools.partial(_by_user, decode, read_bytes)
    if decode == "bytes":
        return read_bytes
    if decode not in _WAYS:
        known = ", ".join(map(repr, (*_WAYS, "gpu", "bytes")))
        raise BadOption(f"decode={decode!r} is neither one of {known} nor a function that takes bytes.")
    require("PIL.Image", extra="images", purpose="Decoding images")  # now rather than in a worker
    return functools.partial(_read_picture, _WAYS[decode])


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise CorruptSource(f'{path} is not text in UTF-8: {words(exc)}. Read it with read="bytes".') from exc


def read_npy(path: str) -> NDArray[np.generic]:
    """Return the array in a file that `numpy.save` wrote."""
    try:
        return decode_npy(read_bytes(path))
    except (ValueError, CorruptSource) as exc:
        raise CorruptSource(f"{path} does not contain an array that numpy.save wrote: {words(exc)}.") from exc


_WAYS: dict[str, str | None] = {"auto": None, "cpu": None, "rgb": "rgb8", "pil": "pil"}
"""Ways to decode images, by their names in `feedline.images.pillow`; None for `feedline.images.decode_image`."""


def _read_picture(way: str | None, path: str) -> object:
    content = read_bytes(path)
    try:
        return decode_image(content) if way is None else picture_decoder(way)(content)
    except CorruptSource as exc:
        raise CorruptSource(f"{path} ({len(content)} bytes) cannot be decoded as an image: {words(exc)}.") from exc
    # Pillow's plugins raise many kinds of errors for a damaged file: OSError, SyntaxError, struct.error, IndexError.
    except Exception as exc:
        raise CorruptSource(
            f"{path} ({len(content)} bytes) cannot be decoded as an image: {words(exc)}. It is damaged, cut "
            "off, not an image, or in an unsupported format, such as EPS."
        ) from exc


# Any: a path, or bytes.
def _by_user(function: Callable[[Any], object], load: Callable[[str], bytes] | None, path: str) -> object:
    """Call a user's function on a path, or on the bytes that `load` reads from it; its errors name the file."""
    content = path if load is None else load(path)
    try:
        return function(content)
    except Exception as exc:
        add_note(exc, f"while reading {path}" if load is None else f"while decoding {path}, {len(content)} bytes")
        raise
