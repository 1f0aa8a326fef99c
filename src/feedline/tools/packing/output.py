"""An output under construction: built in the folder OUT.packing beside it, renamed when complete.

A single file is built from its first sample to its last: an interrupted run starts it over. A folder of shards grows by
one complete shard at a time, each with a note of the run's position: an interrupted run resumes after the last one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from feedline.datasets.opening import FACTS
from feedline.errors import BadOption
from feedline.tools.packing.schema import Schema
from feedline.tools.packing.writers.contract import Format, Summary, Writer
from feedline.types import JsonObject

ENDING = ".packing"
_JOB, _NOTE, _LOCK = "job.json", "note.json", "lock"


class WorkFolder:
    """The folder in which an output is built. It outlives the process if there is something to resume.

    Raises BadOption: another process is working there, or a different job left data there.

    Args:
        out: the output.
        job: description of the job, in JSON-compatible values. Only the same job can be resumed.
        restart: True to start over, discarding what an earlier run left.
    """

    def __init__(self, out: Path, job: dict[str, object], *, restart: bool) -> None:
        self.path = out.with_name(out.name + ENDING)
        self._out = out
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._begin(json.loads(json.dumps(job)), restart=restart)
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def is_left(cls, out: Path) -> bool:
        """True if an interrupted run into `out` can be resumed."""
        return (out.with_name(out.name + ENDING) / _NOTE).exists()

    def _begin(self, job: dict[str, object], *, restart: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise BadOption(
                f"Another process is packing into {self._out}: {self.path} is locked. Wait for it or give another name."
            ) from exc
        if self.note is not None and not restart:
            left = json.loads((self.path / _JOB).read_bytes())
            changed = [name for name in {**left, **job} if left.get(name) != job.get(name)]
            if changed:
                raise BadOption(
                    f"{self.path} was left by a run with {_difference(changed[0], left, job)} Run with --restart "
                    "(restart=True) to start over, or with everything as it was to resume."
                )
            return
        (self.path / _NOTE).unlink(missing_ok=True)
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
        write_durably(self.path / _JOB, json.dumps(job).encode())

    @property
    def note(self) -> JsonObject | None:
        """The most recent note; None if there is nothing to resume."""
        path = self.path / _NOTE
        found: dict[str, object] | None = json.loads(path.read_bytes()) if path.exists() else None
        return found

    def write_note(self, note: dict[str, object]) -> None:
        """Record the run's position, in JSON-compatible values."""
        write_durably(self.path / _NOTE, json.dumps(note).encode())

    def deliver(self, built: Path) -> None:
        """Give the output its name, replacing any older output."""
        replaced = self.path / "replaced"
        if self._out.is_dir():
            # A folder cannot be replaced in one step. In between, readers find no output, never a partial one.
            os.rename(self._out, replaced)
        try:
            os.replace(built, self._out)
        except BaseException:
            if replaced.exists() and not self._out.exists():
                os.rename(replaced, self._out)
            raise
        sync(self._out.parent)
        (self.path / _NOTE).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock, and remove the folder if there is nothing to resume. May be called twice."""
        if self._lock < 0:
            return
        if self.note is None:
            shutil.rmtree(self.path)
        os.close(self._lock)
        self._lock = -1


class Output:
    """One file or folder of arrays, or a folder of shards. `path` is complete after `finish`."""

    def __init__(self, folder: Path, format_: Format, compression: str | None, *, sharded: bool) -> None:
        self._suffix = format_.suffixes[0]
        self.path = folder / ("output" if sharded else f"output{self._suffix}")
        self.schema = Schema(())
        self.is_sharded = sharded
        self.shard_count = 0
        self._format = format_
        self._compression = compression
        self._writer: Writer | None = None
        self._count = 0
        """Number of samples in complete shards."""

    @property
    def files(self) -> list[Path]:
        """The files that a source needs to read the output."""
        return [self._shard(number) for number in range(self.shard_count)] if self.is_sharded else [self.path]

    def _shard(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}{self._suffix}"

    def resume(self, shard_count: int, count: int, schema: Schema) -> bool:
        """Continue after `shard_count` shards with `count` samples; False if a shard is missing."""
        if not all(self._shard(number).exists() for number in range(shard_count)):
            return False
        self.shard_count, self._count, self.schema = shard_count, count, schema
        return True

    # object: a sample as encoded by the format's writer.
    def write(self, samples: Sequence[object]) -> None:
        """Append samples that the writer's class encoded. Set `schema` first."""
        if self._writer is None:
            path = self.path.with_name(f"shard{self._suffix}") if self.is_sharded else self.path
            _remove(path)  # an interrupted run may have started it
            self._writer = self._format.writer(path, self.schema, self._compression, self._count)
        self._writer.write(samples)

    def finish_shard(self, summary: Summary) -> None:
        """Complete the file being written, if any."""
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
        if self.is_sharded:
            self.path.mkdir(exist_ok=True)
            os.replace(writer.path, self._shard(self.shard_count))
            sync(self.path)
            self.shard_count += 1
            self._count += summary.count

    def finish(self, summary: Summary) -> None:
        """Complete the output."""
        self.finish_shard(summary)
        if self.is_sharded:
            write_durably(self.path / FACTS, json.dumps(summary.as_json(self.schema)).encode())

    def close(self) -> None:
        """Release everything, without completing the output."""
        if self._writer is not None:
            self._writer.close()


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically: at any moment it has either all of the old or all of the new content."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _difference(name: str, left: dict[str, object], job: dict[str, object]) -> str:
    if name == "dataset":  # the value is a fingerprint, which means nothing to a reader
        return (
            "another dataset: its contents, or the code that makes its samples, have changed. (In Python, you can name "
            "the dataset with source=; then only the name has to stay the same.)"
        )
    return f"{name}={left.get(name)!r}, but now it is {job.get(name)!r}."
