"""What a writer does, and how it can go on after its process was killed.

A writer builds an output under a name of its own: a file, or a folder. At a checkpoint everything written so far is on
the disk, together with a note from whoever writes. `resume` opens the output exactly as it was at the last checkpoint,
whatever came after it, and returns the note; so an output that was interrupted at any moment, and gone on with, has
the bytes of one that was not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from feedline.errors import PackError
from feedline.packing.schema import Column, Sample, Schema, Unfit

VERSION = 1


@dataclass(frozen=True)
class Summary:
    """What is known when the last sample was written; stored with the samples where the format has a place for it."""

    count: int
    digest: str
    """The chain of digests of all samples, in order."""
    form: str = "dict"
    """What a sample was in the dataset: "dict", "tuple" or "one"."""
    skipped: int = 0
    """Samples of the dataset that failed and were left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Whatever else is known of all samples, such as the names of classes."""

    def as_json(self, schema: Schema) -> dict[str, Any]:
        """Return it in values that JSON keeps."""
        return {"feedline": VERSION, **asdict(self), "fields": schema.as_json()}


@dataclass(frozen=True)
class Layout:
    """Choices about how samples lie in the output."""

    compression: str | None = None
    chunk_bytes: int = 1 << 16
    """HDF5: bytes of a chunk, about. Guess, not measured: small enough for random access, large enough to be read in
    order."""
    group_bytes: int = 1 << 18
    """Parquet: bytes of a row group, about. A sample costs the reading of its group: random reads of rows of 48 KB
    took about a fifth of the time that they take from groups of 4 MiB, and half of that from groups of 1 MiB."""


class Writer(ABC):
    """Writes samples into one output.

    Called by one thread. First `resume`; if that returns None, `begin`; then `write` and `checkpoint` as often as
    wanted; then `finish`, and `clear` when the output has got its name. `close` at any time, also twice.

    Args:
        path: where the output is built. Beside it are the writer's own files, which begin with the same name.
        layout: choices about the output.
    """

    format: ClassVar[str]
    compressions: ClassVar[tuple[str, ...]] = ()
    """Values of `Layout.compression` that it knows."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._state_path = path.with_name(path.name + ".state")
        self.schema = Schema(())

    @classmethod
    @abstractmethod
    def cannot_hold(cls, column: Column) -> str:
        """Say why the format cannot hold such a column, and what to do; "" if it can."""

    # Any: whatever the writer makes of it.
    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> Any:
        """Return a sample that fits the schema as `write` takes it.

        Raises:
            Unfit: the format cannot hold one of its values.
        """
        for column in schema.columns:
            refusal = cls._refusal(column, sample[column.name])
            if refusal is not None:
                raise refusal
        return sample

    @classmethod
    def _refusal(cls, column: Column, value: Any) -> Unfit | None:
        """Return the error for a value that the format cannot hold, although it can hold others of the column."""
        return None

    @abstractmethod
    def _begin(self) -> None:
        """Open a new, empty output. `self.schema` is set."""

    @abstractmethod
    def _resume(self, state: Any) -> None:
        """Open the output as it was when `_state` returned this. `self.schema` is set."""

    @abstractmethod
    def write(self, samples: Sequence[Any]) -> None:
        """Append samples, as `encoded` returned them."""

    @abstractmethod
    def _state(self) -> Any:
        """Put everything that was written on the disk, and return, for JSON, what `_resume` needs."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """Complete the output, right after a checkpoint; may be repeated from there. Closes everything."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, without completing the output."""

    def begin(self, schema: Schema) -> None:
        """Open a new output for samples of this schema.

        Raises:
            PackError: the format cannot hold such samples.
        """
        check_schema(type(self), schema)
        self.schema = schema
        self._remove()
        self._begin()

    def checkpoint(self, note: Any) -> None:
        """Put everything that was written on the disk, and with it a note, in values that JSON keeps."""
        write_durably(
            self._state_path,
            json.dumps({"schema": self.schema.as_json(), "writer": self._state(), "note": note}).encode(),
        )

    def resume(self) -> Any:
        """Open the output as it was at the last checkpoint, and return its note; None if there was none.

        A format may know by itself that the output is finished: {"finished": its summary} is returned then.
        """
        try:
            saved = json.loads(self._state_path.read_bytes())
        except FileNotFoundError:
            return None
        self.schema = Schema.from_json(saved["schema"])
        self._resume(saved["writer"])
        return saved["note"]

    def clear(self) -> None:
        """Remove the writer's own files."""
        self._state_path.unlink(missing_ok=True)

    def _remove(self) -> None:
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        self.clear()


def unfit(kind: type[Writer], column: Column, what: str, advice: str) -> Unfit:
    """Return the error for a value that a format cannot hold.

    Args:
        kind: the writer.
        column: that the value is of.
        what: is wrong with it; follows "its field 'x'".
        advice: what to do, in sentences.
    """
    return Unfit(f"its field {column.name!r} {what}, which {kind.format} cannot hold", advice)


def check_schema(kind: type[Writer], schema: Schema) -> None:
    """Refuse samples that a format cannot hold.

    Raises:
        PackError: it says which field, why, and what to do.
    """
    for column in schema.columns:
        reason = kind.cannot_hold(column)
        if reason:
            raise PackError(f"{kind.format} cannot hold the field {column.name!r} ({column.described}): {reason}")


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file, so that at any moment the old or the new content is there as a whole."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def let_go(file: IO[bytes]) -> None:
    """Close a file, of which only what is on the disk already is wanted."""
    with contextlib.suppress(OSError):  # what was still to be written: it is from after the last checkpoint
        file.close()


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
