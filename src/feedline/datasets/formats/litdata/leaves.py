"""Decodes the values of LitData samples from untrusted bytes; tensors come as NumPy arrays, media as their bytes."""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.indexed_shards import Decoding
from feedline.datasets.formats.mds.encodings import UNTRUSTED, array_of, image_of, list_of, pixels_of, text_of
from feedline.errors import BadOption

_NUMPY = dict(enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))) | {13: "?"}
"""Complex numbers are missing: their codes depend on the version of LitData that wrote them."""
# fmt: off
_TORCH = dict(enumerate((
    "f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2", None, "u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8",
    "?", "u2",
)))
# fmt: on
"""Code 10 is bfloat16, which NumPy does not have."""
_IMAGES = ("jpeg", "image")
_MEDIA = ("video", "audio", "tifffile", "tiff", "nifti", "mesh", "pdf", "file")
_MOST_AXES = 64


@functools.lru_cache(256)
def decoding_of(name: str, *, decode: str | None = None, pickles: bool = False) -> Decoding:
    """Return the function that decodes a value, given the name of its serializer in index.json.

    Raises BadOption: the serializer is unknown, or runs code.

    Example:
        >>> decoding_of("no_header_numpy:4")(b"abc").tolist(), decoding_of("str")(b"abc")
        ([97, 98, 99], 'abc')
    """
    kind, _, options = name.partition(":")
    if kind in ("no_header_numpy", "no_header_tensor"):
        return functools.partial(_flat, token_type(name))
    if kind == "pickle" and not pickles:
        raise BadOption(UNTRUSTED)
    image = bytes if decode is None else functools.partial(image_of, decode)
    known: dict[str, Decoding] = {
        "str": text_of,
        "text": text_of,
        "int": lambda data: struct.unpack("<q", data)[0],
        "float": lambda data: struct.unpack("<d", data)[0],
        "bool": lambda data: struct.unpack("<?", data)[0],
        "bytes": bytes,
        "numpy": functools.partial(_shaped, "<", _NUMPY),
        "tensor": functools.partial(_shaped, ">", _TORCH),
        "pil": pixels_of,
        "pickle": pickle.loads,
        "json": _nested,
        "jpeg_array": functools.partial(list_of, image, 0),
        **dict.fromkeys(_IMAGES, image),
        **dict.fromkeys(_MEDIA, bytes),
    }
    if kind not in known or (options and kind not in (*_IMAGES, *_MEDIA)):
        raise BadOption(f"feedline does not know the serializer {name!r:.100}. Leave the value out with fields=.")
    return known[kind]


def token_type(name: str) -> np.dtype[np.generic]:
    """Return the type of the numbers of a serializer without header. Raises BadOption: feedline does not read it."""
    kind, _, code = name.partition(":")
    table = _TORCH if kind == "no_header_tensor" else _NUMPY
    found = table.get(int(code)) if code.isdecimal() and len(code) < 4 else None
    if found is None:
        raise BadOption(f"feedline does not read arrays of the type {name!r:.100}.")
    return np.dtype(found)


def _nested(data: bytes) -> object:
    raise BadOption(
        f"A value of the serializer 'json' has {len(data)} bytes in a format of LitData's own, which feedline does not "
        "read. Leave the value out with fields=, or write the samples again with pyarrow installed."
    )


def _flat(dtype: np.dtype[np.generic], data: bytes) -> NDArray[np.generic]:
    return np.frombuffer(data, dtype).copy()


def _shaped(order: str, codes: Mapping[int, str | None], data: bytes) -> NDArray[np.generic]:
    """Return an array behind a header: the code of its type, the number of axes, the shape."""
    code, axes = struct.unpack_from(f"{order}II", data)
    if codes.get(code) is None or axes > _MOST_AXES:
        raise ValueError(f"feedline does not know an array of type {code} with {axes} axes")
    shape = struct.unpack_from(f"{order}{axes}I", data, 8)
    return array_of(np.dtype(codes[code]), shape, data[8 + 4 * axes :])
