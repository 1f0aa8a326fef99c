"""The line of Python that reads an output."""

from __future__ import annotations

import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.opening import SOURCES, SUFFIXES
from feedline.packing.schema import Column, Schema
from feedline.packing.writers.tar import member_names

LISTS = "list"
"""The function that makes batches of samples that cannot be stacked."""


def dataset_text(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the expression that opens an output so that samples have the form they had."""
    fields = fields_for(format_name, schema, form)
    options = "" if fields is None else f", fields={fields!r}"
    faster = unpacked_option(place) if format_name == "parquet" else ""
    return f"{SOURCES[format_name].__name__}({place!r}{options}{faster})"


def unpacked_option(place: str) -> str:
    """Return `cache=` for Parquet files, without which random access is slow: a folder beside those of this machine.

    Example:
        >>> unpacked_option("data/train.parquet"), unpacked_option("data/train/shard-*.parquet")
        (", cache='data/train.unpacked'", ", cache='data/train.unpacked'")
        >>> unpacked_option("s3://bucket/train.parquet")
        ', cache=True'
    """
    if "://" in place:
        return ", cache=True"
    path = Path(place)
    while glob.has_magic(path.name):
        path = path.parent
    stem = path.with_suffix("") if path.suffix.lower() in SUFFIXES["parquet"] else path
    return f", cache={f'{stem}.unpacked' if path.name else 'unpacked'!r}"


# Any: whatever `fields=` of a source takes.
def fields_for(format_name: str, schema: Schema, form: str) -> Any:
    """Return `fields=` for samples of the form they had; None if they have it without."""
    names = schema.names
    if format_name == "tar":
        members = member_names(schema)
        stored = tuple(members[name] for name in names)
        return {"dict": {name: members[name] for name in names}, "tuple": stored, "one": stored[0] if stored else None}[
            form
        ]
    return {"dict": None, "tuple": names, "one": names[0] if names else None}[form]


def loader_line(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the line that loads an output."""
    return loader_text(dataset_text(format_name, place, schema, form), collate_for(schema, form))


def loader_text(dataset: str, collate: str = "", *, is_stream: bool = False) -> str:
    """Return the line that loads the dataset that an expression opens."""
    shuffle = "" if is_stream else ", shuffle=True"
    given = f", collate={collate}" if collate else ""
    hint = "  # batches are lists of samples, which do not stack as they are" if collate == LISTS else ""
    return f"loader = feedline.Loader(feedline.datasets.{dataset}, batch_size=32{shuffle}, workers=4{given}){hint}"


def torch_line(line: str) -> str:
    """Return the same line for torch: `feedline.DataLoader` in place of `feedline.Loader`.

    Example:
        >>> torch_line(loader_text("HDF5Dataset('train.h5')", "list")).partition("batch_size")[2].partition("  #")[0]
        '=32, shuffle=True, num_workers=4, collate_fn=list)'
    """
    dataset, end, options = line.removeprefix("loader = feedline.Loader(").rpartition(", batch_size=32")
    options = options.replace(", workers=", ", num_workers=").replace(", collate=", ", collate_fn=")
    return f"loader = feedline.DataLoader({dataset}{end}{options}"


def reading_lines(line: str) -> list[str]:
    """Return the lines to show: also that for torch, where it is installed."""
    return [line] if find_spec("torch") is None else [line, torch_line(line)]


def collate_for(schema: Schema, form: str) -> str:
    """Return the expression for `collate=` that makes batches of such samples; "" if the default does.

    Example:
        >>> import numpy as np
        >>> collate_for(Schema.of([{"ids": np.arange(2)}, {"ids": np.arange(3)}]), "dict")
        "feedline.collate.pad(fields=['ids'])"
    """
    odd = [column for column in schema.columns if _does_not_stack(column)]
    if not odd:
        return ""
    if not all(_is_padded(column) for column in odd):
        return LISTS
    if form == "one":
        return "feedline.collate.pad()"
    names = schema.names
    places = [column.name if form == "dict" else names.index(column.name) for column in odd]
    return f"feedline.collate.pad(fields={places!r})"


def _does_not_stack(column: Column) -> bool:
    return column.nullable or column.kind in ("ragged", "mixed", "nested")


def _is_padded(column: Column) -> bool:
    """True if the arrays differ in length only, and consist of numbers."""
    one_axis = column.kind == "ragged" and len(column.shape) == 1
    return one_axis and not column.nullable and np.dtype(column.dtype).kind in "biufc"
