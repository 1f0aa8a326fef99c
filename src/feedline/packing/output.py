"""An output while it is built: one file or folder, or a folder of shards."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedline.packing.formats import Format
from feedline.packing.schema import Sample, Schema
from feedline.packing.writers.contract import Layout, Summary, Writer, check_schema, sync_folder, write_durably

META = "feedline.json"


class Output(ABC):
    """What `pack` writes to. As with a `Writer`: `resume`, else `begin`; `write`, `checkpoint`; `finish`.

    `path` is complete after `finish`, and gets its name then.
    """

    path: Path
    schema: Schema

    @abstractmethod
    def resume(self) -> Any:
        """Go back to the last checkpoint and return its note; None if there is none."""

    @abstractmethod
    def begin(self, schema: Schema) -> None:
        """Begin a new output."""

    # Any: whatever the format's writer makes of a sample.
    @abstractmethod
    def write(self, samples: Sequence[Any]) -> None:
        """Append samples, as the class of the writer encoded them."""

    @abstractmethod
    def checkpoint(self, note: Any) -> None:
        """Put everything on the disk, and a note."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """Complete `path`, right after a checkpoint."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    @abstractmethod
    def read(self) -> Iterator[Sample]:
        """Yield the samples of the finished output."""


class Single(Output):
    """One writer."""

    def __init__(self, folder: Path, format_: Format, layout: Layout) -> None:
        self._format = format_
        self._writer = format_.writer(folder / f"output{format_.suffixes[0]}", layout)
        self.path = self._writer.path

    @property
    def schema(self) -> Schema:  # type: ignore[override]  # it is the writer's
        """Of the samples."""
        return self._writer.schema

    def resume(self) -> Any:
        return self._writer.resume()

    def begin(self, schema: Schema) -> None:
        self._writer.begin(schema)

    def write(self, samples: Sequence[Any]) -> None:
        self._writer.write(samples)

    def checkpoint(self, note: Any) -> None:
        self._writer.checkpoint(note)

    def finish(self, summary: Summary) -> None:
        self._writer.finish(summary)

    def close(self) -> None:
        self._writer.close()

    def read(self) -> Iterator[Sample]:
        return read_file(self._format, self.path)


class Shards(Output):
    """A folder of files, each complete when it appears there.

    A shard begins with its first sample. Before it is left, there is a checkpoint: so either a shard is being written,
    and its writer knows the last checkpoint, or it is finished and the note of its last checkpoint is still there.
    """

    def __init__(self, folder: Path, format_: Format, layout: Layout) -> None:
        self.path = folder / "output"
        self.schema = Schema(())
        self._folder = folder
        self._format = format_
        self._layout = layout
        self._number = 0
        self._left: Writer | None = None
        """Of the shard before, whose note is still needed."""
        self._writer: Writer | None = None
        self._count = 0
        """Samples in finished shards."""

    @property
    def is_open(self) -> bool:
        """True if a shard was begun and not left."""
        return self._writer is not None

    def _make_writer(self, number: int) -> Writer:
        suffix = self._format.suffixes[0]
        options = {"first": self._count} if self._format.name == "tar" else {}
        return self._format.writer(self._folder / f"shard-{number:06d}{suffix}", self._layout, **options)

    def _finished(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}{self._format.suffixes[0]}"

    def resume(self) -> Any:
        found = [re.match(r"shard-(\d+)\..*\.state$", path.name) for path in self._folder.iterdir()]
        numbers = sorted(int(match[1]) for match in found if match)
        if not numbers:
            return None
        for number in numbers[:-1]:
            self._make_writer(number).clear()
        self._number = numbers[-1]
        writer = self._make_writer(self._number)
        if not self._finished(self._number).exists():
            self._writer = writer
            note = writer.resume()
        else:
            saved = json.loads(writer._state_path.read_bytes())
            writer.schema, note = Schema.from_json(saved["schema"]), saved["note"]
            self._left, self._number = writer, self._number + 1
        self.schema = writer.schema
        self._count = note["count"] - (note["shard"]["count"] if self._writer is not None else 0)
        return note

    def begin(self, schema: Schema) -> None:
        check_schema(self._format.writer, schema)
        self.schema = schema
        self.path.mkdir(exist_ok=True)

    def write(self, samples: Sequence[Any]) -> None:
        if self._writer is None:
            self._writer = self._make_writer(self._number)
            self._writer.begin(self.schema)
        self._writer.write(samples)

    def checkpoint(self, note: Any) -> None:
        if self._writer is None:
            return  # nothing was written since the last one
        self._writer.checkpoint(note)
        if self._left is not None:
            self._left.clear()
            self._left = None

    def leave(self, summary: Summary) -> None:
        """Finish the shard, right after a checkpoint."""
        if self._writer is None:
            return
        self._writer.finish(summary)
        self.path.mkdir(exist_ok=True)
        os.replace(self._writer.path, self._finished(self._number))
        sync_folder(self.path)
        self.schema = self._writer.schema  # which may know more by now
        self._left, self._writer = self._writer, None
        self._number += 1
        self._count += summary.count

    def finish(self, summary: Summary) -> None:
        write_durably(self.path / META, json.dumps(summary.as_json(self.schema)).encode())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def read(self) -> Iterator[Sample]:
        for path in shard_paths(self.path, self._format):
            yield from read_file(self._format, path)


def shard_paths(folder: Path, format_: Format) -> list[Path]:
    """Return the shards in a folder, in order."""
    return sorted(path for path in folder.glob("shard-*") if path.suffix in format_.suffixes)


def read_file(format_: Format, path: Path) -> Iterator[Sample]:
    """Yield the samples of one finished file or folder, read with nothing but the format's own library."""
    samples: Iterator[Sample] = format_.module.read(path)
    return samples
