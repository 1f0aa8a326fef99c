"""Writes MDS shards like `MDSWriter` of mosaicml-streaming 0.13; the tests compare the two byte by byte."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

SIZES = {"int": 8, **{name: np.dtype(name).itemsize for name in ("uint8", "int32", "float16", "float64", "uint64")}}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.compress,
    "gz": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2": bz2.compress,
}
ARRAY_CODES = {"uint8": 8, "int16": 17, "float32": 34, "int64": 65}

Shard = Sequence[dict[str, Any]]


def encoded(encoding: str, value: Any) -> bytes:
    name, _, options = encoding.partition(":")
    if isinstance(value, bytes):
        return value
    if name in SIZES:
        return bytes(np.dtype("int64" if name == "int" else name).type(value).tobytes())
    if name == "ndarray":
        return array(options, value)
    if name == "json":
        return json.dumps(value).encode()
    assert isinstance(value, (str, int, float, Decimal))
    return str(value).encode()


def array(options: str, value: Any) -> bytes:
    dtype, _, shape = options.partition(":")
    head = b"" if dtype else bytes([ARRAY_CODES[value.dtype.name]])
    if not shape:
        width = next(code for code in range(4) if max(value.shape) < 1 << (8 << code))
        head += bytes([value.ndim << 2 | width]) + np.array(value.shape, f"<u{1 << width}").tobytes()
    return head + bytes(value.tobytes())


def size_of(encoding: str) -> int | None:
    name, _, options = encoding.partition(":")
    if name == "ndarray" and options.count(":") == 1:
        dtype, _, shape = options.partition(":")
        return int(np.prod(list(map(int, shape.split(","))))) * np.dtype(dtype).itemsize
    return SIZES.get(name)


def write(
    folder: Path, columns: dict[str, str], shards: Sequence[Shard], compression: str | None = None, **odd: Any
) -> Path:
    """Write shards of samples, and index.json; `odd` replaces entries of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    encodings, sizes = [columns[name] for name in names], [size_of(columns[name]) for name in names]
    described = {"column_encodings": encodings, "column_names": names, "column_sizes": sizes}
    settings: dict[str, Any] = {
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    config = json.dumps({**described, **settings}, sort_keys=True).encode()
    listed = []
    for number, samples in enumerate(shards):
        contents = []
        for sample in samples:
            parts = [encoded(columns[name], sample[name]) for name in names]
            varying = [len(part) for part, size in zip(parts, sizes, strict=True) if size is None]
            contents.append(struct.pack(f"<{len(varying)}I", *varying) + b"".join(parts))
        head = 8 + 4 * len(samples) + len(config)
        offsets = head + np.cumsum([0, *map(len, contents)])
        data = struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + config + b"".join(contents)
        name = f"shard.{number:05}.mds"
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        packed = None
        if compression is not None:
            kind = compression.partition(":")[0]
            name, data = f"{name}.{kind}", PACK[kind](data)
            packed = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / name).write_bytes(data)
        listed.append({**described, **settings, "raw_data": raw, "zip_data": packed, "samples": len(samples), **odd})
    (folder / "index.json").write_text(json.dumps({"shards": listed, "version": 2}, sort_keys=True))
    return folder
