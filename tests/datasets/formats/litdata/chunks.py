"""Writes chunks like `BinaryWriter` of litdata 0.2.76; the tests compare the two byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

NUMPY = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def leaf(value: Any) -> tuple[str, bytes]:
    """Return the name of the serializer for a value, and the value's bytes."""
    if isinstance(value, bool):
        return "bool", bytes([value])
    if isinstance(value, int):
        return "int", struct.pack("<q", value)
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, str):
        return "str", value.encode()
    if isinstance(value, bytes):
        return "bytes", value
    assert isinstance(value, np.ndarray)
    code = NUMPY.index(value.dtype.name)
    if value.ndim == 1:
        return f"no_header_numpy:{code}", value.tobytes()
    return "numpy", struct.pack(f"<{2 + value.ndim}I", code, value.ndim, *value.shape) + value.tobytes()


def flattened(value: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the values in a sample, and the structure of its containers."""
    if not isinstance(value, (dict, list, tuple)):
        return [value], LEAF
    parts = [flattened(one) for one in (value.values() if isinstance(value, dict) else value)]
    context = json.dumps(list(value)) if isinstance(value, dict) else "null"
    spec = {
        "type": f"builtins.{type(value).__name__}",
        "context": context,
        "children_spec": [child for _, child in parts],
    }
    return [one for values, _ in parts for one in values], spec


def encoded(value: Any) -> bytes:
    contents = [leaf(one)[1] for one in flattened(value)[0]]
    return struct.pack(f"<{len(contents)}I", *map(len, contents)) + b"".join(contents)


def chunk_of(contents: Sequence[bytes]) -> bytes:
    offsets = 8 + 4 * len(contents) + np.cumsum([0, *map(len, contents)])
    return struct.pack("<I", len(contents)) + offsets.astype("<u4").tobytes() + b"".join(contents)


def arrow_chunk(samples: Sequence[dict[str, Any]]) -> bytes:
    """Return a chunk whose samples are the rows of an Arrow table."""
    table = pa.Table.from_pylist(list(samples))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for start in range(0, len(samples), 256):
            writer.write_table(table.slice(start, min(256, len(samples) - start)))
    ipc: bytes = sink.getvalue().to_pybytes()
    return chunk_of([b""] * len(samples)) + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0"


def write(
    folder: Path,
    chunks: Sequence[Sequence[Any]],
    *,
    tokens: bool = False,
    arrow: bool = False,
    compression: str | None = None,
    old: bool = False,
    **odd: Any,
) -> Path:
    """Write chunks of samples, and index.json; `odd` replaces entries of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    values, spec = flattened(chunks[0][0])
    listed = []
    for number, samples in enumerate(chunks):
        contents = [one.tobytes() if tokens else encoded(one) for one in samples]
        data = arrow_chunk(samples) if arrow else chunk_of(contents)
        name = f"chunk-0-{number}.bin" if compression is None else f"chunk-0-{number}.{compression}.bin"
        (folder / name).write_bytes(data if compression is None else zstandard.compress(data))
        listed.append(
            {
                "chunk_bytes": sum(map(len, contents)) if old else len(data),  # earlier versions omitted the table
                "chunk_size": len(samples),
                "dim": sum(map(len, samples)) if tokens else None,
                "filename": name,
            }
        )
    config = {
        "compression": compression,
        "compression_level": None,
        "data_format": [leaf(one)[0] for one in values],
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
        **({} if old else {"item_loader": "TokensLoader" if tokens else "PyTreeLoader"}),
    }
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": {**config, **odd}}, sort_keys=True))
    return folder
