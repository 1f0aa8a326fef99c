"""What is in a store or folder, as the source that reads it delivers it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline._optional import is_tensor
from feedline.errors import CorruptSource, FeedlineError, MissingExtra
from feedline.failures import words
from feedline.images.pillow import checked_picture
from feedline.packing.digest import all_of, digest_of_all, packed_samples, size_on_disk
from feedline.packing.line import LISTS, collate_for, loader_text
from feedline.packing.opening import Opened, open_path
from feedline.packing.pictures import extension_of
from feedline.packing.schema import Column, Sample, Schema

_LOOKED_AT = 100
"""Samples from which types and statistics are told."""
_OF_PICTURES = ("pictures", "CSV table of files")
"""Formats whose field `image` holds files that are meant to be pictures."""


# Any, throughout: the value of a field, and values that JSON keeps.
def inspect(
    path: str, *, fields: Sequence[str] | None = None, sample_count: int = 3, verify: bool = False
) -> dict[str, Any]:
    """Say what is at a path, in values that JSON keeps.

    With `verify` all samples are read, and compared with the digest that `feedline pack` stored, if it did. Raises
    SourceError: there is nothing, or nothing that a source reads; CorruptSource: it is damaged.
    """
    with look_into(path, fields) as opened:
        statistics = Statistics(opened)
        examples = [{name: value_text(value) for name, value in one.items()} for one in take(opened, sample_count)]
        form = "dict"
        for sample in _spread(opened.dataset, _LOOKED_AT):
            form = "dict" if isinstance(sample, dict) else "tuple" if isinstance(sample, (tuple, list)) else "one"
            statistics.add(_named(sample))
        verified = None
        if verify:
            statistics = Statistics(opened)
            verified = _verified(opened, statistics)
        is_map = hasattr(opened.dataset, "__getitem__")
        if opened.format == "pictures":
            collate = LISTS if statistics.has_uneven_pictures else ""
        else:
            collate = _collate(opened.stored, statistics, form)
        stored = opened.stored or {}
        has_line = opened.expression and statistics.count
        line = loader_text(opened.expression, collate, is_stream=not is_map) if has_line else ""
        return {
            "path": path,
            "format": opened.format,
            "form": "map-style" if is_map else "stream",
            "source": type(opened.dataset).__name__,
            "samples": len(opened.dataset) if is_map else verified["samples"] if verified else None,
            "bytes": size_on_disk(opened.files),
            "files": len(opened.files),
            "looked at": statistics.count,
            "fields": statistics.fields(),
            "facts": opened.facts,
            "packed": {name: stored[name] for name in ("digest", "skipped") if stored.get(name)},
            "left out": list(opened.unused.notes) if opened.unused.files else [],
            "examples": examples,
            "verified": verified,
            "line": line,
        }


def look_into(path: str, fields: Sequence[str] | None = None) -> Opened:
    """Open what is at a path, with these fields, or all."""
    return open_path(path, fields=None if fields is None else tuple(zip(fields, fields, strict=True)))


def take(opened: Opened, count: int) -> list[Sample]:
    """Return so many samples: from everywhere in a map-style dataset, the first of a stream."""
    return list(map(_named, _spread(opened.dataset, count)))


def _spread(dataset: Any, count: int) -> Iterator[Any]:
    if not hasattr(dataset, "__getitem__"):
        return itertools.islice(dataset, count)
    there = len(dataset)
    count = min(there, count)
    # One of each stretch, the same in each run. At equal distances they could all fall on every fourth row.
    chosen = random.Random(there)
    stretches = ((place * there // count, (place + 1) * there // count) for place in range(count))
    return (dataset[chosen.randrange(*stretch)] for stretch in stretches)


def _named(sample: Any) -> Sample:
    if isinstance(sample, (tuple, list)):
        sample = {str(number): value for number, value in enumerate(sample)}
    named = sample if isinstance(sample, dict) else {"value": sample}
    return {str(name): value.numpy() if is_tensor(value) else value for name, value in named.items()}


def _collate(stored: dict[str, Any] | None, statistics: Statistics, form: str) -> str:
    """Return the expression for `collate=` that makes batches; "" if the default does."""
    if stored is not None:
        return collate_for(Schema.from_json(stored["fields"]), stored["form"])
    schema = statistics.schema()
    return LISTS if schema is None else collate_for(schema, form)


def _verified(opened: Opened, statistics: Statistics) -> dict[str, Any]:
    """Read all samples, and compare their digest with the one that was stored.

    Raises CorruptSource: it is another one, or samples cannot be read.
    """
    stored, size = opened.stored, size_on_disk(opened.files)
    if stored is None:
        samples: Iterable[Sample] = map(_named, all_of(opened.dataset, size))
    else:
        schema = Schema.from_json(stored["fields"])
        whole = [Path(opened.path)] if opened.format in ("npy", "lmdb") else list(opened.files)
        samples = packed_samples(opened.format, whole, schema, stored["form"])
    try:
        if stored is None:
            for sample in samples:
                statistics.add(sample)
            return {"samples": statistics.count, "digest": None}
        count, digest = digest_of_all(statistics.watch(samples))
    except Exception as exc:  # whatever a library makes of damaged bytes
        if isinstance(exc, FeedlineError) and not isinstance(exc, CorruptSource):
            raise
        raise CorruptSource(
            f"{opened.path} is damaged: reading sample {statistics.count} failed: {words(exc)}."
        ) from exc
    if (count, digest) != (stored["count"], stored["digest"]):
        raise CorruptSource(
            f"{opened.path} is damaged or was changed: it has {count} samples with digest {digest}, but "
            f"{stored['count']} with digest {stored['digest']} were packed. Pack it again, or restore it."
        )
    return {"samples": count, "digest": digest}


@dataclass
class _Field:
    """What is known of one field."""

    types: dict[str, Any] = field(default_factory=dict)
    """In the order in which they came, each with a value that has it."""
    is_picture: bool = False
    """True if all values are meant to be pictures."""
    count: int = 0
    missing: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    numbers: int = 0
    lengths: set[int] = field(default_factory=set)
    pictures: set[tuple[int, int]] = field(default_factory=set)
    unreadable: int = 0
    first_unreadable: str = ""

    def add(self, value: Any, path: str) -> None:
        self.count += 1
        kind = type_text(value)
        if kind not in self.types:
            # Of an array not its memory: there may be many.
            is_array = isinstance(value, np.ndarray)
            self.types[kind] = np.broadcast_to(np.empty((), value.dtype), value.shape) if is_array else value
        if value is None:
            self.missing += 1
        elif isinstance(value, (str, bytes)):
            self.lengths.add(len(value))
            if isinstance(value, bytes) and (self.is_picture or extension_of(value) != "bin"):
                self._add_picture(value, path)
        elif isinstance(value, (bool, int, float, np.ndarray, np.generic)):
            self._add_numbers(np.asarray(value))

    def _add_numbers(self, array: Any) -> None:
        if array.dtype.kind not in "biuf":
            return
        numbers = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if numbers.size:
            self.low, self.high = min(self.low, numbers.min().item()), max(self.high, numbers.max().item())
            self.total += float(numbers.sum(dtype=np.float64))
            self.numbers += numbers.size

    def _add_picture(self, data: bytes, path: str) -> None:
        try:
            with checked_picture(data) as picture:
                self.pictures.add(picture.size)
        except MissingExtra:
            return  # without Pillow nothing is known of pictures
        except (CorruptSource, OSError, SyntaxError, ValueError):
            self.unreadable += 1
            self.first_unreadable = self.first_unreadable or path

    def as_json(self, declared: str) -> dict[str, Any]:
        types = [declared, "None"] if declared and list(self.types) == ["None"] else list(self.types)
        few = " or ".join(types)
        facts: dict[str, Any] = {"type": few if len(types) <= 4 else f"{types[0]} and {len(types) - 1} others"}
        if self.numbers:
            facts |= {"min": self.low, "max": self.high, "mean": self.total / self.numbers}
        if self.lengths:
            facts |= {"shortest": min(self.lengths), "longest": max(self.lengths)}
        if self.pictures:
            widths, heights = zip(*self.pictures, strict=True)
            facts |= {"smallest picture": [min(widths), min(heights)], "largest picture": [max(widths), max(heights)]}
        if self.unreadable:
            facts["unreadable pictures"] = self.unreadable
            if self.first_unreadable:
                facts["such as"] = self.first_unreadable
        if self.missing:
            facts["missing"] = self.missing
        return facts


class Statistics:
    """What is known of the fields of some samples."""

    def __init__(self, opened: Opened | None = None) -> None:
        self.count = 0
        self._fields: dict[str, _Field] = {}
        self._has_pictures = opened is not None and opened.format in _OF_PICTURES
        self._types = {} if opened is None else getattr(opened.dataset, "column_types", {})

    def add(self, sample: Sample) -> None:
        """Count a sample."""
        self.count += 1
        path = str(sample.get("path", "")) if self._has_pictures else ""
        for name, value in sample.items():
            if name not in self._fields:
                self._fields[name] = _Field(is_picture=self._has_pictures and name == "image")
            self._fields[name].add(value, path)

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count samples that pass by."""
        for sample in samples:
            self.add(sample)
            yield sample

    @property
    def has_uneven_pictures(self) -> bool:
        """True if pictures have different sizes."""
        return any(len(one.pictures) > 1 for one in self._fields.values())

    def fields(self) -> list[dict[str, Any]]:
        """Return what is known of each field, in values that JSON keeps."""
        return [{"name": name, **one.as_json(str(self._types.get(name, "")))} for name, one in self._fields.items()]

    def schema(self) -> Schema | None:
        """Return what the fields hold; None if samples have different fields."""
        if any(one.count != self.count for one in self._fields.values()):
            return None
        return Schema(tuple(Column.of(name, list(one.types.values())) for name, one in self._fields.items()))


def type_text(value: Any) -> str:
    """Say of what type a value is."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, bytes):
        kind = extension_of(value)
        return "bytes" if kind == "bin" else kind
    if isinstance(value, np.generic):
        return "str" if isinstance(value, np.str_) else value.dtype.name
    return "None" if value is None else type(value).__name__


def value_text(value: Any) -> str:
    """Show a value in a line."""
    if isinstance(value, np.ndarray):
        if value.size <= 8 and value.ndim == 1:
            return f"{type_text(value)}, {value.tolist()}"
        is_numeric = value.size and value.dtype.kind in "biuf"
        return f"{type_text(value)}{f', {value.min()} to {value.max()}' if is_numeric else ''}"
    if isinstance(value, bytes):
        kind = extension_of(value)
        start = f"{value[:24]!r}{'...' if len(value) > 24 else ''}"
        return f"{len(value):,} bytes, {start if kind == 'bin' else kind}"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 100 else f"{text[:97]}..."
