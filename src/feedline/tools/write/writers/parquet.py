"""Write Parquet files: one column per field."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import MissingExtra
from feedline.system.optional import require
from feedline.tools.write.prepare import size_of
from feedline.tools.write.schema import Column, Sample, Schema, describe, is_utf8
from feedline.tools.write.writers.contract import Writer, let_go
from feedline.types import JsonObject

if TYPE_CHECKING:
    from pyarrow import DataType
    from pyarrow import parquet as pq

META = "feedline"
_MOST_ROWS = 4096
"""Most rows in a row group. Guess, not measured: at worst, reading one sample reads its whole group."""

_GROUP_BYTES = 1 << 18
"""Approximate size of a row group. Reading one sample reads its whole group: random reads of 48 KB rows took about a
fifth of the time that they take with groups of 4 MiB, and half of the time with groups of 1 MiB."""

_READS_MISSING = 26
"""First pyarrow version that can read fixed-size lists from Parquet files in which some lists are missing."""

_TIMES = tuple(f"<M8[{unit}]" for unit in ("D", "s", "ms", "us", "ns"))


def _reads_missing() -> bool:
    try:
        version: str = require("pyarrow", extra="parquet", purpose="Writing Parquet").__version__
    except MissingExtra:
        return False
    return int(version.partition(".")[0]) >= _READS_MISSING


class ParquetWriter(Writer):
    """Collects samples, and writes them as row groups."""

    format = "parquet"
    compressions = ("snappy", "zstd", "lz4", "gzip", "none")
    kinds = ("array", "ragged", "number", "str", "bytes")
    dtypes = "biuf"
    holds_none = True
    most_axes = 1
    most_bytes = (1 << 31) - 1  # Parquet counts the bytes of a value in 31 bits
    holds_empty = False

    @classmethod
    def cannot_hold(cls, column: Column) -> str:
        if _is_time(column):
            return ""
        if column.kind == "array" and column.nullable and not _reads_missing():
            return f"None among arrays, with pyarrow before {_READS_MISSING}"
        if column.dtype and np.dtype(column.dtype).itemsize > 8:
            return f"values of type {np.dtype(column.dtype).name}"
        return super().cannot_hold(column)

    @classmethod
    def _refusal(cls, column: Column, value: Any) -> tuple[str, str] | None:
        if not is_utf8(value):
            return f"is the string {value!r:.80} with an unpaired surrogate in it", "lmdb"
        if _is_time(column) and value is not None and np.isnat(value):
            return "is NaT, which would come back as None", "lmdb"
        size = size_of(value) if column.kind in ("str", "bytes", "ragged") else 0
        return (f"is {describe(value)} of {size:,} bytes", "lmdb, hdf5 or tar") if size > cls.most_bytes else None

    def _open(self) -> None:
        parquet = require("pyarrow.parquet", extra="parquet", purpose="Writing Parquet")
        self._waiting: list[Sample] = []
        self._waiting_bytes = 0
        self._arrow: object = schema_of(self.schema)
        self._file = open(self.path, "wb")  # noqa: SIM115  (closed by `close`)
        self._sink: pq.ParquetWriter = parquet.ParquetWriter(
            self._file,
            self._arrow,
            compression=self.compression or "snappy",
            use_dictionary=_small_paths(self.schema),
            write_page_index=True,
            write_page_checksum=True,  # `ParquetDataset` compares it
        )

    def write(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._waiting.append(sample)
            self._waiting_bytes += sum(map(size_of, sample.values()))
            if self._waiting_bytes >= _GROUP_BYTES or len(self._waiting) >= _MOST_ROWS:
                self._write_group()

    def _write_group(self) -> None:
        if not self._waiting:
            return
        pa = require("pyarrow", extra="parquet", purpose="Writing Parquet")
        rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
        columns = [array_of(column, [row[column.name] for row in rows]) for column in self.schema.columns]
        self._sink.write_table(pa.Table.from_arrays(columns, schema=self._arrow), row_group_size=_MOST_ROWS)

    def finish(self, summary: JsonObject) -> None:
        self._write_group()
        self._sink.add_key_value_metadata({META: json.dumps(self.sealed(summary))})
        self._sink.close()
        self._file.close()

    def close(self) -> None:
        # Closing writes pending data, which is no longer needed and for which the disk may be too full.
        with contextlib.suppress(OSError):
            self._sink.close()
        let_go(self._file)


def _small_paths(schema: Schema) -> list[str]:
    """Return the Parquet paths of the columns with one byte per number, to be dictionary-encoded.

    Parquet stores such a number in four bytes. As an index into a dictionary, it takes one byte again.
    """
    small = [column for column in schema.columns if column.dtype and np.dtype(column.dtype).itemsize == 1]
    return [column.name if column.kind == "number" else f"{column.name}.list.element" for column in small]


def schema_of(schema: Schema) -> object:
    """Return the Arrow schema for samples."""
    pa = require("pyarrow", extra="parquet", purpose="Writing Parquet")
    return pa.schema([pa.field(column.name, type_of(column), nullable=column.nullable) for column in schema.columns])


def type_of(column: Column) -> DataType:
    """Return the Arrow type for a column."""
    pa = require("pyarrow", extra="parquet", purpose="Writing Parquet")
    if column.kind in ("str", "bytes"):
        return pa.large_string() if column.kind == "str" else pa.large_binary()
    number = pa.from_numpy_dtype(np.dtype(column.dtype))
    if column.kind == "number":
        return number
    return pa.fixed_shape_tensor(number, column.shape) if column.kind == "array" else pa.large_list(number)


def array_of(column: Column, values: list[Any]) -> object:
    """Return values as an Arrow array."""
    pa = require("pyarrow", extra="parquet", purpose="Writing Parquet")
    kind = type_of(column)
    if _is_time(column):
        return pa.array(np.array(values, column.dtype), kind)
    if column.kind != "array":
        return pa.array([_plain(value) for value in values], kind)
    mask = np.array([value is None for value in values])
    filler = np.zeros(column.shape, column.dtype)
    rows = np.stack([filler if value is None else value for value in values])
    flat = pa.array(rows.reshape(-1), kind.value_type)
    size = int(np.prod(column.shape))
    storage = pa.FixedSizeListArray.from_arrays(flat, size, mask=pa.array(mask) if mask.any() else None)
    return pa.ExtensionArray.from_storage(kind, storage)


def _is_time(column: Column) -> bool:
    """True for single dates in units that Arrow supports. Parquet stores seconds as milliseconds."""
    return column.kind == "number" and column.dtype in _TIMES


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) and value.dtype != np.float16 else value


def stored(path: Path) -> JsonObject | None:
    """Return the stored summary; None if there is none."""
    parquet = require("pyarrow.parquet", extra="parquet", purpose="Reading Parquet")
    meta = parquet.read_metadata(path).metadata or {}
    found: dict[str, object] | None = json.loads(meta[META.encode()]) if META.encode() in meta else None
    return found
