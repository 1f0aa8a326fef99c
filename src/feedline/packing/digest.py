"""Digests by which what was written is compared with what is read back.

Each sample has one of its own, made where the sample is made, and the digests of all samples are chained in order: a
chain goes on from any sample, which a hash over all bytes could not.

Numbers count by their value, whatever their type: a store may return 3 as a Python integer or as an int64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

SIZE = 16

START = bytes(SIZE).hex()
"""The chain of no samples."""


# Any, throughout: a sample, or a value in it.
def digest_of(sample: Mapping[str, Any]) -> bytes:
    """Return the digest of one sample.

    Example:
        >>> digest_of({"x": 3}) == digest_of({"x": np.int64(3)})
        True
        >>> digest_of({"x": 3}) == digest_of({"y": 3})
        False
    """
    hashed = blake2b(digest_size=SIZE)
    _feed(hashed, sample)
    return hashed.digest()


def chained(chain: str, digests: list[bytes]) -> str:
    """Return the chain after some more samples."""
    link = bytes.fromhex(chain)
    for digest in digests:
        link = blake2b(link + digest, digest_size=SIZE).digest()
    return link.hex()


def _feed(hashed: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.ndim:
        native = value.dtype.newbyteorder("=")
        array = np.ascontiguousarray(value, native)
        hashed.update(f"a{array.dtype.str}{array.shape}".encode())
        hashed.update(array.view(np.uint8).reshape(-1).data if array.size and native.kind != "V" else array.tobytes())
    elif isinstance(value, Mapping):
        hashed.update(f"d{len(value)}".encode())
        for key, one in value.items():
            _feed(hashed, key)
            _feed(hashed, one)
    elif isinstance(value, (list, tuple)):
        hashed.update(f"l{len(value)}".encode())
        for one in value:
            _feed(hashed, one)
    else:
        letter, data = _plain(value)
        hashed.update(f"{letter}{len(data)}:".encode())
        hashed.update(data)


def _plain(value: Any) -> tuple[str, bytes]:
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, str):
        return "s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "b", bytes(value)
    if value is None:
        return "-", b""
    if isinstance(value, np.generic):
        if value.dtype.kind in "mM":
            return "t", f"{value.dtype.str}{value.view(np.int64)}".encode()
        value = value.item() if value.dtype.itemsize <= 16 and value.dtype.char not in "gG" else str(value)
        if isinstance(value, str):
            return "g", value.encode()
    if isinstance(value, complex):
        return "c", (value.real.hex() + value.imag.hex()).encode()
    if isinstance(value, float) and not (value.is_integer() and (value or str(value)[0] != "-")):
        return "n", value.hex().encode()
    if isinstance(value, (int, float)):
        return "n", str(int(value)).encode()
    return "j", json.dumps(value).encode()
