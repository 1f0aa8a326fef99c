"""What the values of a field are: numbers of one shape, text, bytes, or arrays of any length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.errors import BadOption

NUMBERS, TEXT, BYTES, RAGGED = "numbers", "text", "bytes", "ragged"


# Any, in this file: h5py has no type annotations.
@dataclass(frozen=True)
class Field:
    """A field of a dataset: the same in all its files."""

    name: str
    kind: str
    """NUMBERS, TEXT, BYTES or RAGGED."""
    dtype: np.dtype[Any]
    """Of the numbers, in the machine's byte order."""
    row_shape: tuple[int, ...]
    """Of one value; of values that are lists of texts, say, the shape of the list."""

    @property
    def row_bytes(self) -> int:
        """What a row takes, if it is numbers; a guess, if it is not."""
        items = math.prod(self.row_shape)
        return items * (self.dtype.itemsize if self.kind == NUMBERS else 64)

    @property
    def is_stackable(self) -> bool:
        """True if the values of a batch make one column."""
        if self.kind == NUMBERS:
            return self.dtype.kind in "biufc"  # dates have no tensors
        return self.kind != RAGGED and not self.row_shape

    def describe(self) -> str:
        """Return a text for people, such as `float32[3, 64]`."""
        shape = ", ".join(map(str, self.row_shape))
        if self.kind == NUMBERS:
            return f"{self.dtype}[{shape}]"
        value = {TEXT: "str", BYTES: "bytes", RAGGED: f"{self.dtype}[*]"}[self.kind]
        return f"{value}[{shape}]" if shape else value


def has_samples(dataset: Any) -> bool:
    """True if an HDF5 dataset has a first axis, which counts samples."""
    return dataset.shape is not None and len(dataset.shape) > 0


def field_of(name: str, dataset: Any, path: str) -> Field:
    """Return what the values of an HDF5 dataset are.

    Raises:
        BadOption: it has no samples, or is of a type that makes no sample.
    """
    if not has_samples(dataset):
        raise BadOption(
            f"Field {name!r} of {path} is a single value, without an axis that counts samples. Leave it out of fields=."
        )
    h5py = require("h5py", extra="hdf5", purpose="HDF5Dataset")
    dtype, row_shape = dataset.dtype, tuple(dataset.shape[1:])
    if h5py.check_string_dtype(dtype) is not None:
        return Field(name, TEXT, np.dtype(object), row_shape)
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        base = np.dtype(base)
        if not _is_plain(base):
            raise _unreadable(name, path, f"holds sequences of {base}")
        if base == np.uint8 and dataset.attrs.get("feedline") in ("bytes", b"bytes"):
            return Field(name, BYTES, np.dtype(np.uint8), row_shape)
        return Field(name, RAGGED, _native(base), row_shape)
    if dtype.names:
        raise _unreadable(name, path, f"is compound, with the members {', '.join(dtype.names)}")
    if dtype.subdtype is not None:  # an array type: its axes count as axes of the row
        base, more = dtype.subdtype
        if not _is_plain(base):
            raise _unreadable(name, path, f"is of the type {dtype}")
        return Field(name, NUMBERS, _native(base), (*row_shape, *more))
    if not _is_plain(dtype):
        kind = "opaque" if dtype.kind == "V" else "of references" if dtype.kind == "O" else f"of the type {dtype}"
        raise _unreadable(name, path, f"is {kind}")
    return Field(name, NUMBERS, _native(dtype), row_shape)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufcmM"


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(dtype.newbyteorder("=").str)  # without what h5py attaches to it


def _unreadable(name: str, path: str, what: str) -> BadOption:
    return BadOption(
        f"Field {name!r} of {path} {what}, which makes no sample. Choose others with fields=, or store it as datasets "
        "of numbers, strings or variable-length arrays."
    )
