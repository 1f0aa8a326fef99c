"""What the tests of writers share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.packing.formats import FORMATS
from feedline.packing.schema import Sample, Schema
from feedline.packing.writers.contract import Layout, Summary, Writer


def writer_of(format_: str, folder: Path, **layout: Any) -> Writer:
    """Return a writer; its output is called "output"."""
    return FORMATS[format_].writer(folder / f"output{FORMATS[format_].suffixes[0]}", Layout(**layout))


def put(writer: Writer, samples: Sequence[Sample]) -> None:
    """Write samples in the way that `pack` does."""
    fitted = [writer.schema.fitted(sample) for sample in samples]
    writer.write([type(writer).encoded(writer.schema, sample) for sample in fitted])


def finish(writer: Writer, count: int, **facts: Any) -> None:
    """Complete an output in the way that `pack` does."""
    writer.checkpoint({"count": count})
    writer.finish(Summary(count, "ab" * 16, **facts))
    writer.close()


def written(format_: str, folder: Path, samples: Sequence[Sample], **layout: Any) -> Path:
    """Write an output as a whole, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = writer_of(format_, folder, **layout)
    assert writer.resume() is None
    writer.begin(Schema.of(samples))
    put(writer, samples)
    finish(writer, len(samples))
    writer.clear()
    return writer.path


def samples_in(format_: str, path: Path) -> list[Sample]:
    """Return what is in an output, read with nothing but the format's own library."""
    return list(FORMATS[format_].module.read(path))
