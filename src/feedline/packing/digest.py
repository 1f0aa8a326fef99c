"""Digests by which what was written is compared with what is read back.

Each sample has one of its own, made where the sample is made, and the digests of all samples are chained in order: a
chain goes on from any sample, which a hash over all bytes could not.

Numbers count by their value, whatever their type: a store may return 3 as a Python integer or as an int64.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.opening import SOURCES
from feedline.packing.line import fields_for
from feedline.packing.schema import Sample, Schema

SIZE = 16

START = bytes(SIZE).hex()
"""The chain of no samples."""


# Any, throughout: a sample, or a value in it.
def digest_of(sample: Mapping[str, Any]) -> bytes:
    """Return the digest of one sample."""
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


_MOST_SAMPLES, _MOST_BYTES = 256, 1 << 24
"""That are read together, about."""


def packed_samples(format_name: str, files: list[Path], schema: Schema, form: str) -> Iterator[Sample]:
    """Yield the samples of an output, all of it, by the names of their fields."""
    # Any: options of any source.
    options: dict[str, Any] = {"fields": fields_for(format_name, schema, form)}
    if format_name == "tar":
        options["cache"] = False
    # Parquet keeps seconds as milliseconds.
    in_seconds = [column.name for column in schema.columns if format_name == "parquet" and column.dtype == "<M8[s]"]
    # A path, not a string: a file's name may look like a pattern.
    dataset = SOURCES[format_name](files[0] if len(files) == 1 else files, **options)
    try:
        for sample in all_of(dataset, size_on_disk(files)):
            named = _named(sample, schema.names, form)
            for name in in_seconds:
                named[name] = None if named[name] is None else named[name].astype("M8[s]")
            yield named
    finally:
        dataset.close()


# Any: a dataset, and samples of any form.
def all_of(dataset: Any, size: int) -> Iterator[Any]:
    """Yield all samples of a dataset of so many bytes, of a map-style one several at a time."""
    if not hasattr(dataset, "__getitems__"):
        yield from (dataset[index] for index in range(len(dataset))) if hasattr(dataset, "__getitem__") else dataset
        return
    count = len(dataset)
    step = max(1, min(_MOST_SAMPLES, _MOST_BYTES * count // max(1, size)))
    for first in range(0, count, step):
        yield from dataset.__getitems__(range(first, min(first + step, count)))


def _named(sample: Any, names: tuple[str, ...], form: str) -> Sample:
    if form == "dict":
        return {name: sample[name] for name in names}
    return dict(zip(names, sample if form == "tuple" else (sample,), strict=True))


def digest_of_all(samples: Iterable[Sample], report: Callable[[int], Any] = lambda _: None) -> tuple[int, str]:
    """Return how many samples there are, and their digest; `report` is told the number from time to time."""
    chain, count = START, 0
    for count, sample in enumerate(samples, 1):
        chain = chained(chain, [digest_of(sample)])
        if count % 256 == 0:
            report(count)
    return count, chain


def size_on_disk(paths: Iterable[Path]) -> int:
    """Return how many bytes files have, and all files in folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file())
