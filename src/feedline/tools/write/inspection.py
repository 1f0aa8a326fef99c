"""Inspect a store or folder through the source that reads it. Nothing is imported, run or unpickled."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedline.datasets.derived.formats import READABLE
from feedline.datasets.derived.recognition import Recognised, recognise
from feedline.datasets.framework.manifest import Manifest
from feedline.datasets.storage.addresses import shown_address
from feedline.errors import CorruptSource, FeedlineError
from feedline.system.failures import words
from feedline.system.optional import is_tensor
from feedline.tools.write.opening import (
    Opened,
    count_samples,
    dataset_text,
    loader_text,
    open_recognised,
    size_on_disk,
)
from feedline.tools.write.pictures import extension_of
from feedline.tools.write.schema import Column, Sample, Schema
from feedline.types import JsonObject

_SAMPLES_READ = 100
"""Number of samples read to find out what the fields hold."""
_SHOWN = 8
"""Largest array that an example shows element by element."""
_KEPT = 1 << 16
"""Characters or bytes kept of each value: a hundred large files could fill the memory."""


def inspect(path: str, *, fields: Sequence[str] | None = None, verify: bool = False) -> JsonObject:
    """Describe the dataset at a path, in JSON-compatible values.

    With `verify`, read all samples, so that the source compares all checksums. Otherwise, nothing but the manifest is
    read of a folder in a store that `feedline pack` wrote.

    Raises:
        SourceError: nothing exists at the path, or no source can read it.
        CorruptSource: the data is damaged.
    """
    found = recognise(path)
    described = {"path": shown_address(path), "format": found.format, "left out": 0, "looked at": 0, "verified": None}
    if found.manifest is not None:
        described |= _by_manifest(found, found.manifest, fields)
        if verify:
            with open_recognised(found) as opened:
                described["verified"] = _verified(opened)
        return described
    with open_recognised(found, None if fields is None else list(fields)) as opened:
        samples, examples = _read_some(opened.dataset)
        names = dict.fromkeys(name for sample in samples for name in sample)
        schema = Schema(tuple(Column.of(name, [sample.get(name) for sample in samples]) for name in names))
        verified = _verified(opened) if verify else None
        is_map = hasattr(opened.dataset, "__getitem__")
        return described | {
            "form": "map-style" if is_map else "stream",
            "source": type(opened.dataset).__name__,
            "samples": len(opened.dataset) if is_map else verified,
            "bytes": size_on_disk(opened.files) if opened.files else None,
            "files": len(opened.files) or None,  # remote files are not counted
            "left out": opened.left_out,
            "skipped": (opened.stored or {}).get("skipped", 0),
            "metadata": opened.metadata,
            "looked at": len(samples),
            "fields": [
                {"name": column.name, "type": type_text(column), "example": examples.get(column.name, "None")}
                for column in schema.columns
            ],
            "verified": verified,
            "line": loader_text(opened.expression, _as_loaded(opened, schema), is_stream=not is_map) if samples else "",
        }


def _by_manifest(found: Recognised, manifest: Manifest, fields: Sequence[str] | None) -> JsonObject:
    """Describe a folder in a store by its manifest."""
    stored, folder = manifest.stored, shown_address(found.path)
    try:
        schema = Schema.from_json(stored["fields"])
        line = loader_text(dataset_text(found.format, folder, schema, stored["form"]), schema)
    except (LookupError, TypeError, ValueError) as exc:
        raise CorruptSource(f"The manifest of {folder} does not describe its fields: {words(exc)}.") from exc
    shown = schema if fields is None else schema.chosen(fields, folder)
    return {
        "form": "map-style",
        "source": READABLE[found.format].source.__name__,
        "samples": stored["count"],
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "files": len(manifest.shards),
        "skipped": stored.get("skipped", 0),
        "metadata": stored.get("metadata", {}),
        "fields": [{"name": one.name, "type": type_text(one), "example": ""} for one in shown.columns],
        "line": line,
    }


# Any, from here on: a dataset of any class, and the value of a field.
def _spread(dataset: Any, count: int) -> Iterator[object]:
    """Yield `count` samples: spread over a map-style dataset, or the first ones of a stream."""
    if not hasattr(dataset, "__getitem__"):
        return itertools.islice(dataset, count)
    # Seeded, so every run chooses the same samples. Random, because samples at equal distances may all be of one kind.
    chosen = random.Random(0).sample(range(len(dataset)), min(len(dataset), count))
    return (dataset[index] for index in sorted(chosen))


def _read_some(dataset: object) -> tuple[list[Sample], dict[str, str]]:
    """Return some samples, with large values reduced to what a schema needs, and an example of each field as text."""
    samples: list[Sample] = []
    examples: dict[str, str] = {}
    for sample in _spread(dataset, _SAMPLES_READ):
        if isinstance(sample, (tuple, list)):
            sample = {str(number): value for number, value in enumerate(sample)}
        named = sample if isinstance(sample, dict) else {"value": sample}
        for name, value in named.items():
            if value is not None and str(name) not in examples:
                examples[str(name)] = value_text(value)
        samples.append({str(name): _outline(value) for name, value in named.items()})
    return samples, examples


def _outline(value: Any) -> object:
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, (np.str_, np.bytes_)):
        value = value.item()
    if isinstance(value, np.ndarray):
        return np.broadcast_to(np.empty((), value.dtype), value.shape)
    return value[:_KEPT] if isinstance(value, (str, bytes)) else value


def _as_loaded(opened: Opened, schema: Schema) -> Schema:
    """Return the schema of the samples as the printed `loader_text` line loads them."""
    if opened.format == "pictures":  # the line decodes them, and their sizes may differ
        return Schema((Column("image", "ragged", "|u1", (-1, -1, 3)),))
    return schema if opened.stored is None else Schema.from_json(opened.stored["fields"])


def _verified(opened: Opened) -> int:
    """Read all samples and return their number. Raises CorruptSource: a sample cannot be read, or some are missing."""
    count = 0

    def report(done: int) -> None:
        nonlocal count
        count = done

    try:
        count = count_samples(opened.dataset, size_on_disk(opened.files), report)
    except Exception as exc:  # libraries raise all kinds of exceptions on damaged bytes
        if isinstance(exc, FeedlineError) and not isinstance(exc, CorruptSource):
            raise
        raise CorruptSource(f"{opened.path} is damaged: reading failed after {count} samples: {words(exc)}.") from exc
    packed = count if opened.stored is None else opened.stored["count"]
    if count != packed:
        raise CorruptSource(
            f"{opened.path} is damaged or was changed: it has {count} samples, but {packed} were packed. Pack it "
            "again, or restore it."
        )
    return count


def type_text(column: Column) -> str:
    """Return the type of a field as the table shows it."""
    kind = column.extension if column.kind == "bytes" and column.extension != "bin" else column.described
    return f"{kind} or None" if column.nullable else kind


def value_text(value: Any) -> str:
    """Return a value as text on one line."""
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.tolist()) if value.size <= _SHOWN else f"{value.dtype.name} array of shape {value.shape}"
    if isinstance(value, bytes):
        kind = extension_of(value)
        return f"{len(value):,} bytes{f', {value[:24]!r}' if kind == 'bin' else ''}"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 100 else f"{text[:97]}..."
