"""Helpers for the tests of writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.tools.write.schema import Sample, Schema
from feedline.tools.write.writers.contract import FORMATS, Summary, Writer
from tests.tools.write.stores import read_files


def writer_of(format_: str, folder: Path, schema: Schema, compression: str | None = None) -> Writer:
    """Return a writer; its output is called "output"."""
    return FORMATS[format_].writer(folder / f"output{FORMATS[format_].suffixes[0]}", schema, compression)


def put(writer: Writer, samples: Sequence[Sample]) -> None:
    """Write samples as `pack` does."""
    fitted = [writer.schema.fitted(sample) for sample in samples]
    writer.write([type(writer).encoded(writer.schema, sample) for sample in fitted])


def finish(writer: Writer, count: int, **metadata: Any) -> None:
    """Complete an output as `pack` does."""
    writer.finish(Summary(count, **metadata))
    writer.close()


def written(format_: str, folder: Path, samples: Sequence[Sample], compression: str | None = None) -> Path:
    """Write a complete output, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = writer_of(format_, folder, Schema.of(samples), compression)
    put(writer, samples)
    finish(writer, len(samples))
    return writer.path


def samples_in(format_: str, path: Path) -> list[Sample]:
    """Return the samples in an output."""
    return read_files(format_, [path], FORMATS[format_].module.stored(path))
