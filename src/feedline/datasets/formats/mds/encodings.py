"""Decodes the values of MDS samples from untrusted bytes; the results are those of MosaicML Streaming, except images.

Images stay as they were stored, as the bytes of a JPEG or PNG file, unless a decoder was chosen. That is the rule of
all sources.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import struct
from decimal import Decimal, InvalidOperation
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.indexed_shards import Decoding
from feedline.errors import BadOption, CorruptSource
from feedline.images.pillow import check_pixels, decoded_picture, picture_decoder
from feedline.system.optional import require

Number = TypeVar("Number", bound=np.generic)

_NUMBERS = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64")
_CODES = dict(zip((8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66), _NUMBERS, strict=True))
"""The code of each type in an array that stores its own."""
_IMAGES = ("jpeg", "png")
_MOST_AXES = 63
BROKEN = (
    CorruptSource,
    ValueError,
    LookupError,
    TypeError,
    struct.error,
    InvalidOperation,
    RecursionError,
    EOFError,
    pickle.UnpicklingError,
)
"""What decoding raises if bytes are damaged. A pickle may also raise anything else."""
UNTRUSTED = (
    "A pickle runs any code that its author put into it, so it is not decoded. If you trust the author, pass "
    "allow_pickle=True. Otherwise leave it out with fields=."
)
"""Why pickles are not decoded."""


@functools.lru_cache(256)
def decoding_of(encoding: str, *, decode: str | None = None, pickles: bool = False) -> Decoding:
    r"""Return the function that decodes the values of a column.

    Args:
        encoding: its name in index.json.
        decode: the decoder of images; None to return their bytes.
        pickles: True to decode pickles, which can run any code.

    Raises BadOption: the encoding is unknown, or a pickle.

    Example:
        >>> decoding_of("int")(b"\x07" + bytes(7)), decoding_of("ndarray:uint8:2,2")(b"abcd").tolist()
        (7, [[97, 98], [99, 100]])
    """
    name, _, options = encoding.partition(":")
    if name == "ndarray":
        return _array_decoding(encoding, options)
    if name in _NUMBERS and not options:
        return functools.partial(_number, np.dtype(f"<{np.dtype(name).str[1:]}"))
    if name == "pkl" and not pickles:
        raise BadOption(UNTRUSTED)
    image = bytes if decode is None else functools.partial(image_of, decode)
    known: dict[str, Decoding] = {
        "bytes": bytes,
        "str": text_of,
        "int": _integer,
        "str_int": lambda data: int(text_of(data)),
        "str_float": lambda data: float(text_of(data)),
        "str_decimal": lambda data: Decimal(text_of(data)),
        "json": json.loads,
        "pkl": pickle.loads,
        "pil": pixels_of,
        **dict.fromkeys(_IMAGES, image),
        **dict.fromkeys(("jpeg_array", "jpegarray"), functools.partial(list_of, image, 0)),
        **{f"list[{one}]": functools.partial(list_of, image, 4) for one in _IMAGES},
        "list[pil]": functools.partial(list_of, pixels_of, 4),
    }
    if encoding not in known:
        raise BadOption(f"feedline does not know the encoding {encoding!r:.100}. Leave the column out with fields=.")
    return known[encoding]


def size_of(encoding: str) -> int | None:
    """Return the bytes of every value of a column; None if they vary.

    Raises BadOption: the encoding is not valid.
    """
    name, _, options = encoding.partition(":")
    if name == "int":
        return 8
    if name in _NUMBERS:
        return np.dtype(name).itemsize
    if name != "ndarray":
        return None
    dtype, shape = _array_form(encoding, options)
    return None if dtype is None or shape is None else math.prod(shape) * dtype.itemsize


def text_of(data: bytes) -> str:
    """Return a text. Raises ValueError: it is not UTF-8."""
    return data.decode("utf-8")


def _integer(data: bytes) -> int:
    return int(_number(np.dtype("<i8"), data))


def _number(dtype: np.dtype[Number], data: bytes) -> Number:
    value: Number
    (value,) = np.frombuffer(data, dtype)
    return value


def _array_form(encoding: str, options: str) -> tuple[np.dtype[np.generic] | None, tuple[int, ...] | None]:
    name, _, axes = options.partition(":")
    try:
        shape = tuple(map(int, axes.split(","))) if axes else None
    except ValueError:
        shape = (0,)
    is_right = shape is None or (min(shape) >= 1 and len(shape) <= _MOST_AXES and math.prod(shape) < 1 << 32)
    if (name and name not in _NUMBERS) or not is_right:
        raise BadOption(f"The encoding {encoding!r:.100} is not valid: it names no type or shape of arrays.")
    return (np.dtype(name) if name else None), shape


def _array_decoding(encoding: str, options: str) -> Decoding:
    return functools.partial(array_of, *_array_form(encoding, options))


def array_of(dtype: np.dtype[np.generic] | None, shape: tuple[int, ...] | None, data: bytes) -> NDArray[np.generic]:
    """Return an array; if its type or shape is not given, it is read from the bytes before the numbers.

    Raises one of `BROKEN`: they are damaged.
    """
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_CODES[data[0]]), 1
    if shape is None:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        at += 1
        sizes = data[at : at + axes * width]
        if len(sizes) != axes * width:
            raise ValueError(f"its shape of {axes} axes is cut off")
        shape = tuple(np.frombuffer(sizes, f"<u{width}").tolist())
        at += len(sizes)
    if math.prod(shape) * dtype.itemsize != len(data) - at:
        raise ValueError(f"an array of {dtype} and shape {shape} does not have {len(data) - at} bytes")
    return np.frombuffer(data, dtype, offset=at).reshape(shape).copy()


def image_of(decode: str, data: bytes) -> object:
    """Return a decoded image. Raises CorruptSource: it is damaged or too large."""
    return decoded_picture(picture_decoder(decode), data)


def pixels_of(data: bytes) -> object:
    """Return an image that was stored as its pixels."""
    pillow = require("PIL.Image", extra="images", purpose="Decoding images")
    width, height, letters = struct.unpack_from("<III", data)
    mode = data[12 : 12 + letters].decode("ascii")
    check_pixels(width, height, len(data))
    if mode not in pillow.MODES:
        raise ValueError(f"its mode {mode!r:.20} is unknown")
    return pillow.frombytes(mode, (width, height), data[12 + letters :])


def list_of(one: Decoding, at: int, data: bytes) -> list[object]:
    """Return a list: the number of values, their sizes, and the values."""
    (count,) = struct.unpack_from("<I", data, at)
    if count > len(data) // 4:
        raise ValueError(f"a list of {count} values does not fit into {len(data)} bytes")
    sizes = struct.unpack_from(f"<{count}I", data, at + 4)
    at += 4 + 4 * count
    if sum(sizes) != len(data) - at:
        raise ValueError("the values of a list are cut off")
    values = []
    for size in sizes:
        values.append(one(data[at : at + size]))
        at += size
    return values
