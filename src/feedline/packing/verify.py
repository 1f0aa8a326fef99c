"""Reads all samples of what was packed, through the source that users will read it with, and compares the digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from feedline.datasets.opening import SOURCES
from feedline.packing.digest import START, chained, digest_of
from feedline.packing.line import fields_for
from feedline.packing.schema import Sample, Schema

_MOST_SAMPLES, _MOST_BYTES = 256, 1 << 24
"""That are read together, about."""


def packed_samples(format_name: str, files: list[Path], schema: Schema, form: str) -> Iterator[Sample]:
    """Yield the samples of an output, all of it, by the names of their fields.

    Args:
        format_name: of the output.
        files: its shards, or the output itself.
        schema: of the samples.
        form: of a sample.
    """
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
