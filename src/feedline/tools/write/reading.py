"""Read an output: the options of its source, the example line for people, and a pass over all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from feedline.datasets.derived.formats import READABLE
from feedline.system.process import core_count
from feedline.tools.write.schema import Schema
from feedline.tools.write.writers.tar import member_names

_READ_SAMPLES, _READ_BYTES = 256, 1 << 24
"""Limits on the samples and (approximate) bytes read in one step."""

_WORKERS = 4
"""Workers of the loader in a line for people, on a machine with at least as many cores."""


# object: whatever type the `fields=` option of a source takes.
def fields_for(format_name: str, schema: Schema, form: str) -> object:
    """Return the `fields=` option with which a source returns samples in their original form; None if not needed."""
    names = schema.names
    if format_name == "tar":
        members = member_names(schema)
        if form == "dict":
            return members
        names = tuple(members[name] for name in names)
    return {"dict": None, "tuple": names, "one": names[0] if names else None}[form]


def dataset_text(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the `feedline.datasets` call that opens an output."""
    fields = fields_for(format_name, schema, form)
    return f"{READABLE[format_name].source.__name__}({place!r}{'' if fields is None else f', fields={fields!r}'})"


def loader_text(dataset: str, schema: Schema, *, is_stream: bool = False) -> str:
    """Return the line of Python that loads the dataset which the call `dataset` opens.

    Example:
        >>> loader_text("HDF5Dataset('a.h5')", Schema.of([{"x": 1}])).partition(", workers=")[0]
        "loader = feedline.Loader(feedline.datasets.HDF5Dataset('a.h5'), batch_size=32, shuffle=True"
    """
    call = f"loader = feedline.Loader(feedline.datasets.{dataset}, {loader_options(is_stream=is_stream)}"
    if all(column.stacks for column in schema.columns):
        return f"{call})"
    return f"{call}, collate_fn=list)  # its samples do not stack: put a function there, such as feedline.collate.pad()"


def loader_options(*, is_stream: bool = False) -> str:
    """Return the options of the loader in a line for people, with no more workers than this machine has cores."""
    return f"batch_size=32, {'' if is_stream else 'shuffle=True, '}workers={min(_WORKERS, core_count())}"


# Any, from here on: a dataset of any class.
def open_packed(format_name: str, files: Path | list[Path], schema: Schema, form: str) -> Any:
    """Open an output, or shards of one, with the source that reads it."""
    options: dict[str, object] = {"fields": fields_for(format_name, schema, form)}
    if format_name == "tar":
        options["cache"] = False
    # A path, not a string: the file's name may look like a pattern.
    return READABLE[format_name].source(files, **options)


def count_samples(dataset: object, size: int, report: Callable[[int], object]) -> int:
    """Read all samples of a dataset of about `size` bytes, so that the source compares all checksums.

    Calls `report` with the number of samples from time to time, and at the end.
    """
    count = 0
    for count, _ in enumerate(_all_of(dataset, size), 1):
        if count % _READ_SAMPLES == 0:
            report(count)
    report(count)
    return count


def _all_of(dataset: Any, size: int) -> Iterator[object]:
    if not hasattr(dataset, "__getitems__"):
        yield from (dataset[index] for index in range(len(dataset))) if hasattr(dataset, "__getitem__") else dataset
        return
    count = len(dataset)
    step = max(1, min(_READ_SAMPLES, _READ_BYTES * count // max(1, size)))
    for first in range(0, count, step):
        yield from dataset.__getitems__(range(first, min(first + step, count)))


def size_on_disk(paths: Iterable[Path]) -> int:
    """Return the total size of files, including all files in folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file())
