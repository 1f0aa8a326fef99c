"""An output under construction: one file, or a folder of shards.

A single file is built from its first sample to its last: an interrupted run starts it over. A folder of shards grows by
one complete shard at a time, each with a note of the run's position: an interrupted run resumes after the last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from feedline.datasets.framework.checksums import sealed
from feedline.datasets.framework.manifest import FACTS
from feedline.system.files import sync, write_durably
from feedline.tools.write.schema import Schema
from feedline.tools.write.work import Indexing, keep_in, remove
from feedline.tools.write.writers.contract import Format, Summary, Writer


class Output:
    """One file or folder of arrays, or a folder of shards. `path` is complete after `finish`.

    Args:
        folder: the folder in which to build it.
        sharded: True for a folder of shards.
        keep: takes complete shards, as `Work.keep` does; by default they are moved to `path`.
        place: the address of an output in a store; it becomes part of the manifest.
        prefix: how the names of shards begin.
    """

    # object: JSON-compatible values.
    def __init__(
        self,
        folder: Path,
        format_: Format,
        compression: str | None,
        *,
        sharded: bool,
        keep: Callable[[Path, dict[str, object], Indexing], None] | None = None,
        place: str = "",
        prefix: str = "shard-",
    ) -> None:
        self._suffix = format_.suffixes[0]
        self.path = folder / ("output" if sharded else f"output{self._suffix}")
        self.schema = Schema(())
        self.is_sharded = sharded
        self.entries: list[dict[str, object]] = []
        """What the manifest says of each complete shard."""
        self._format = format_
        self._compression = compression
        self._keep = keep
        self._place = place
        self._prefix = prefix
        self._writer: Writer | None = None
        self._count = 0
        """Number of samples in complete shards."""

    @property
    def shard_count(self) -> int:
        """Number of complete shards."""
        return len(self.entries)

    @property
    def files(self) -> list[Path]:
        """The files that a source needs to read the output."""
        return [self.path / str(entry["name"]) for entry in self.entries] if self.is_sharded else [self.path]

    def resume(self, entries: list[dict[str, object]], count: int, schema: Schema) -> None:
        """Continue after these shards with `count` samples."""
        self.entries, self._count, self.schema = entries, count, schema

    # object: a sample as encoded by the format's writer.
    def write(self, samples: Sequence[object]) -> None:
        """Append samples that the writer's class encoded. Set `schema` first."""
        if self._writer is None:
            path = self.path.with_name(f"shard{self._suffix}") if self.is_sharded else self.path
            remove(path)  # an interrupted run may have started it
            self._writer = self._format.writer(path, self.schema, self._compression, self._count)
        self._writer.write(samples)

    def finish_shard(self, summary: Summary, check: Callable[[Path], None] | None = None) -> None:
        """Complete the file being written, if any. `check` may read the shard before it gets its name."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.finish(summary)
        finally:
            writer.close()
        self.schema = writer.schema  # the writer may have extended it
        for path in (writer.path, *writer.path.glob("*")):
            sync(path)
        if not self.is_sharded:
            return
        if check is not None:
            check(writer.path)
        entry: dict[str, object] = {
            "name": f"{self._prefix}{self.shard_count:06d}{self._suffix}",
            "bytes": writer.path.stat().st_size,
            "samples": summary.count,
        }
        if self._keep is None:
            keep_in(self.path, writer.path, entry, writer.index_of)
        else:
            self._keep(writer.path, entry, writer.index_of)
        self.entries.append(entry)
        self._count += summary.count

    def finish(self, summary: Summary) -> None:
        """Complete the output. The manifest of a folder of shards is written last."""
        self.finish_shard(summary)
        if self.is_sharded:
            self.path.mkdir(exist_ok=True)
            write_durably(self.path / FACTS, json.dumps(self._manifest(summary)).encode())

    # object: JSON-compatible values.
    def _manifest(self, summary: Summary) -> dict[str, object]:
        place = {"place": self._place} if self._place else {}
        facts = {"format": self._format.name, **self._format.writer.facts(self.schema), **place}
        return sealed({**summary.as_json(self.schema), **facts, "shards": self.entries})

    def close(self) -> None:
        """Release everything, without completing the output."""
        if self._writer is not None:
            self._writer.close()
