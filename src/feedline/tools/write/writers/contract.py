"""The contract of writers, and the table of formats.

A writer writes one new file, or one folder of arrays, from the first sample to the last. It never resumes a partial
file. Its caller gives the complete output the final name.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, ClassVar

import numpy as np

from feedline.datasets.derived.formats import COMPRESSED, READABLE
from feedline.datasets.framework.checksums import sealed
from feedline.errors import BadOption
from feedline.system.optional import require
from feedline.tools.write.schema import Column, Sample, Schema, Unfit
from feedline.types import JsonObject

VERSION = 1


class Writer(ABC):
    """Writes samples into one output, which it creates. Call `write` any number of times, then `finish`.

    Used by one thread. `close` may be called at any time, also twice.

    Args:
        path: the path of the output, which must not exist. The names of temporary files start with its name.
        schema: the schema of the samples.
        compression: one of `compressions`; None for the default.
        first: the number of the first sample: keys continue from shard to shard.
    """

    format: ClassVar[str]
    compressions: ClassVar[tuple[str, ...]] = ()
    """Supported values of `compression`."""
    kinds: ClassVar[tuple[str, ...]] = ("array", "ragged", "mixed", "number", "str", "bytes", "nested")
    """Kinds of columns that the format can hold."""
    dtypes: ClassVar[str] = "biufcmMSU"
    """Kinds of arrays and numbers that it can hold, as in `numpy.dtype.kind`."""
    holds_none: ClassVar[bool] = False
    most_axes: ClassVar[int] = 64
    """Most axes of arrays of different shapes."""
    most_bytes: ClassVar[int] = sys.maxsize
    """Largest size of an array in bytes."""
    holds_empty: ClassVar[bool] = True
    """True if arrays may have no elements."""

    def __init__(self, path: Path, schema: Schema, compression: str | None, first: int = 0) -> None:
        self.path = path
        self.schema = schema
        self.compression = compression
        self.first = first
        self._open()

    @classmethod
    def cannot_hold(cls, column: Column) -> str:
        """Return what of such a column the format cannot hold; "" if it can hold all of it."""
        if column.nullable and not cls.holds_none:
            return "None"
        if column.kind not in cls.kinds or (column.kind == "ragged" and len(column.shape) > cls.most_axes):
            return column.described
        if column.dtype and np.dtype(column.dtype).kind not in cls.dtypes:
            return f"values of type {np.dtype(column.dtype).name}"
        if column.kind != "array":
            return ""
        if not cls.holds_empty and 0 in column.shape:
            return "empty arrays"
        return f"arrays of {column.row_bytes:,} bytes" if column.row_bytes > cls.most_bytes else ""

    # object: a sample in the writer's own encoding.
    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> object:
        """Return a sample that fits the schema, encoded for `write`.

        Raises Unfit: the format cannot hold one of its values.
        """
        for column in schema.columns:
            if refusal := cls._refusal(column, sample[column.name]):
                raise unfit(cls, column, *refusal)
        return sample

    @classmethod
    def _refusal(cls, column: Column, value: object) -> tuple[str, str] | None:
        """Say what such a value of the column is that the format cannot hold, and which formats can; None if it can."""
        return None

    @abstractmethod
    def _open(self) -> None:
        """Create the output, without samples."""

    @abstractmethod
    def write(self, samples: Sequence[Any]) -> None:  # Any: what `encoded` of the same writer returns
        """Append samples that `encoded` returned."""

    @abstractmethod
    def finish(self, summary: JsonObject) -> None:
        """Complete the output with this summary of all samples, and close everything."""

    def sealed(self, summary: JsonObject, **more: object) -> JsonObject:
        """Return a summary with the fields and a checksum, to be stored where the format has a place for it."""
        return sealed({**summary, "fields": self.schema.as_json(), **more})

    @abstractmethod
    def close(self) -> None:
        """Release everything, without completing the output."""

    @classmethod
    def index_of(cls, path: Path, crc32: int) -> bytes:
        """Return an index of a complete shard with this checksum, to be stored beside it; none if it needs none."""
        return b""

    # object: JSON-compatible values.
    @classmethod
    def facts(cls, schema: Schema) -> dict[str, object]:
        """Return what else readers of a manifest need to know of the format."""
        return {}


def unfit(kind: type[Writer], column: Column, what: str, others: str) -> Unfit:
    """Return the error for a value that a format cannot hold, but these `others` can."""
    advice = f"Use {others}, or change it in the dataset."
    return Unfit(f"its field {column.name!r} {what}, which {kind.format} cannot hold", advice)


def let_go(file: IO[bytes]) -> None:
    """Close a file that is no longer needed, even if the disk is too full for its buffered data."""
    with contextlib.suppress(OSError):
        file.close()


@dataclass(frozen=True)
class Format:
    """One way to store samples."""

    name: str
    package: str
    """The package that it needs; "" if none."""
    extra: str = ""
    has_shards: bool = False
    """True if several files can be read as one dataset."""
    is_folder: bool = False
    """True if an output without shards is a folder."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of its files; `pack` writes the first one."""
        return tuple(suffix for suffix in READABLE[self.name].suffixes if suffix not in COMPRESSED)

    @property
    def module(self) -> ModuleType:
        """The writer's module, imported on first use."""
        return importlib.import_module(f"feedline.tools.write.writers.{self.name}")

    @property
    def writer(self) -> type[Writer]:
        """The class of the writer. Raises MissingExtra: its package is not installed."""
        if self.package:
            require(self.package, extra=self.extra, purpose=f"Packing into {self.name}")
        return self._class

    @property
    def _class(self) -> type[Writer]:
        kind: type[Writer] = getattr(self.module, f"{self.name.capitalize()}Writer")
        return kind

    def can_hold(self, column: Column) -> bool:
        """True if the format can hold such a column, whether or not its package is installed."""
        return not self._class.cannot_hold(column)


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
    """Return the format with this name, or the format that an output's suffix stands for.

    Raises BadOption: there is no such format.
    """
    if name is not None:
        if name not in FORMATS:
            raise BadOption(f"format={name!r} is not one of {', '.join(FORMATS)}.")
        return FORMATS[name]
    found = next((one for one in FORMATS.values() if out.suffix.lower() in one.suffixes), None)
    if found is None:
        raise BadOption(
            f"The suffix of {str(out)!r} does not select a format. Use one such as "
            f"{', '.join(one.suffixes[0] for one in FORMATS.values())}, or --format {'|'.join(FORMATS)}."
        )
    return found
