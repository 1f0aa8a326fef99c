"""What a writer does, and which there are: it writes one new file, or one folder of arrays, from first sample to last.

Nothing is gone on with inside a file. Whoever uses a writer gives its output the final name when it is complete.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, Any, ClassVar

from feedline.datasets.opening import COMPRESSED, SUFFIXES
from feedline.errors import BadOption
from feedline.system.optional import require
from feedline.tools.packing.schema import Column, Sample, Schema, Unfit
from feedline.types.checksums import KIND

VERSION = 1


@dataclass(frozen=True)
class Summary:
    """What is known when the last sample was written; stored with the samples where the format has a place for it."""

    count: int
    form: str = "dict"
    """What a sample was in the dataset: "dict", "tuple" or "one"."""
    skipped: int = 0
    """Samples of the dataset that failed and were left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Whatever else is known of all samples, such as the names of classes."""

    def as_json(self, schema: Schema) -> dict[str, Any]:
        """Return it in values that JSON keeps; all samples have checksums, and `sealed` gives one to the facts."""
        return {"feedline": VERSION, **asdict(self), "fields": schema.as_json(), "checksum": KIND}


class Writer(ABC):
    """Writes samples into one output, which it creates. `write` as often as wanted, then `finish`.

    Called by one thread. `close` at any time, also twice.

    Args:
        path: of the output, at which nothing is. Files that the writer needs meanwhile begin with the same name.
        schema: of the samples.
        compression: one of `compressions`; None for what is usual.
        first: the number of the first sample: the keys of shards go on from shard to shard.
    """

    format: ClassVar[str]
    compressions: ClassVar[tuple[str, ...]] = ()
    """Values of `compression` that it knows."""

    def __init__(self, path: Path, schema: Schema, compression: str | None, first: int = 0) -> None:
        self.path = path
        self.schema = schema
        self.compression = compression
        self.first = first
        self._open()

    @classmethod
    @abstractmethod
    def cannot_hold(cls, column: Column) -> str:
        """Say why the format cannot hold such a column, and what to do; "" if it can."""

    # Any: whatever the writer makes of it.
    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> Any:
        """Return a sample that fits the schema as `write` takes it.

        Raises Unfit: the format cannot hold one of its values.
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
    def _open(self) -> None:
        """Create the output, without samples."""

    @abstractmethod
    def write(self, samples: Sequence[Any]) -> None:
        """Append samples, as `encoded` returned them."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """Complete the output, and close everything."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, without completing the output."""


def unfit(kind: type[Writer], column: Column, what: str, advice: str) -> Unfit:
    """Return the error for a value that a format cannot hold."""
    return Unfit(f"its field {column.name!r} {what}, which {kind.format} cannot hold", advice)


def let_go(file: IO[bytes]) -> None:
    """Close a file that is not wanted any more, although what it still had to write may have no room."""
    with contextlib.suppress(OSError):
        file.close()


@dataclass(frozen=True)
class Format:
    """One way to store samples."""

    name: str
    package: str
    """That it needs; "" if none."""
    extra: str = ""
    has_shards: bool = False
    """True if several files can be read as one dataset."""
    is_folder: bool = False
    """True if an output without shards is a folder."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of its files; the first is the one that is written."""
        return tuple(suffix for suffix in SUFFIXES[self.name] if suffix not in COMPRESSED)

    @property
    def module(self) -> ModuleType:
        """The file of the writer, imported only now."""
        if self.package:
            require(self.package, extra=self.extra, purpose=f"Packing into {self.name}")
        return importlib.import_module(f"feedline.tools.packing.writers.{self.name}")

    @property
    def writer(self) -> type[Writer]:
        """The class of the writer."""
        kind: type[Writer] = getattr(self.module, f"{self.name.capitalize()}Writer")
        return kind


FORMATS = {
    found.name: found
    for found in (
        Format("lmdb", "lmdb", "lmdb"),
        Format("hdf5", "h5py", "hdf5", has_shards=True),
        Format("tar", "", has_shards=True),
        Format("parquet", "pyarrow", "parquet", has_shards=True),
        Format("npy", "", is_folder=True),
    )
}


def format_of(out: Path, name: str | None) -> Format:
    """Return the format with this name, or the one that an output's suffix stands for.

    Raises BadOption: there is none.
    """
    if name is not None:
        if name not in FORMATS:
            raise BadOption(f"format={name!r} is none of {', '.join(FORMATS)}.")
        return FORMATS[name]
    found = next((one for one in FORMATS.values() if out.suffix.lower() in one.suffixes), None)
    if found is None:
        raise BadOption(
            f"{str(out)!r} does not say by its suffix which format is meant. Give it one, such as "
            f"{', '.join(one.suffixes[0] for one in FORMATS.values())}, or say --format {'|'.join(FORMATS)}."
        )
    return found
