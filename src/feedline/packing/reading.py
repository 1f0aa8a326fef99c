"""Reads an output with the source that the printed line names: what is compared is what a user will get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline import datasets
from feedline.packing.line import CLASSES, fields_for
from feedline.packing.schema import Sample, Schema

_MOST_SAMPLES, _MOST_BYTES = 256, 1 << 24
"""That are read together, about."""


def read_as_printed(format_name: str, place: Path, schema: Schema, form: str, size: int) -> Iterator[Sample]:
    """Yield the samples of a finished output.

    Args:
        format_name: of the output.
        place: its path, or the pattern that its shards fit.
        schema: of the samples.
        form: of a sample.
        size: of the output in bytes.
    """
    # Any: options of any source.
    options: dict[str, Any] = {"fields": fields_for(format_name, schema, form)}
    if format_name == "tar":
        options["cache"] = False
    # Parquet keeps seconds as milliseconds.
    in_seconds = [column.name for column in schema.columns if format_name == "parquet" and column.dtype == "<M8[s]"]
    dataset = getattr(datasets, CLASSES[format_name])(str(place), **options)
    try:
        count = len(dataset)
        step = max(1, min(_MOST_SAMPLES, _MOST_BYTES * count // max(1, size)))
        for first in range(0, count, step):
            for sample in dataset.__getitems__(range(first, min(first + step, count))):
                named = _named(sample, schema.names, form)
                for name in in_seconds:
                    named[name] = None if named[name] is None else named[name].astype("M8[s]")
                yield named
    finally:
        dataset.close()


# Any: a sample of any form.
def _named(sample: Any, names: tuple[str, ...], form: str) -> Sample:
    if form == "dict":
        return {name: sample[name] for name in names}
    return dict(zip(names, sample if form == "tuple" else (sample,), strict=True))
