"""Writes TFRecord files and tf.train.Example messages like TensorFlow; tests compare them with the package tfrecord."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from feedline.datasets.formats.tfrecord.framing import sum_of


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", sum_of(length)) + data + struct.pack("<I", sum_of(data))


def file_of(records: Iterable[bytes]) -> bytes:
    return b"".join(map(framed, records))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any, *, packed: bool = True) -> bytes:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        parts = [struct.pack("<f", one) for one in value.tolist()]
        return field(2, field(1, b"".join(parts)) if packed else b"".join(b"\x0d" + one for one in parts))
    if isinstance(value, np.ndarray):
        parts = [varint(one) for one in value.tolist()]
        return field(3, field(1, b"".join(parts)) if packed else b"".join(b"\x08" + one for one in parts))
    return field(1, b"".join(field(1, one) for one in (value if isinstance(value, list) else [value])))


def example(features: Mapping[str, Any], *, packed: bool = True) -> bytes:
    entries = (field(1, name.encode()) + field(2, feature(one, packed=packed)) for name, one in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))
