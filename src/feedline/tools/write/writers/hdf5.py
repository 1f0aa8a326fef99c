"""Write HDF5 files: one dataset per field at the root, with the samples along its first axis."""

from __future__ import annotations

import io
import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.datasets.formats.hdf5.checked import SUMS, value_sum
from feedline.datasets.framework.checksums import BlockSums
from feedline.system.optional import require
from feedline.tools.write.schema import Column, Sample, is_utf8
from feedline.tools.write.writers.contract import Writer
from feedline.types import JsonObject

if TYPE_CHECKING:
    from h5py import Dataset, File
    from typing_extensions import Buffer

META = "feedline"
"""Attribute of the file, with the summary of all samples; and of a dataset, with the meaning of its values."""
_REFERENCE_BYTES = 16
"""Size of a variable-length value in its chunk: the value itself is stored elsewhere."""
_CHUNK_BYTES = 1 << 16
"""Approximate size of a chunk. Guess, not measured: small enough for random access, large enough for sequential reads.
"""


class _File(io.FileIO):
    """A file for h5py that keeps the first error, such as a full disk, for `check`.

    h5py calls these methods from C code that does not survive an exception, and after a failed write of h5py's own the
    process crashes at exit. So these methods do not raise: after the first error, they discard all data.
    """

    error: OSError | None = None

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                written = 0
                while written < len(view):
                    written += super().write(view[written:]) or 0
                return written
            except OSError as exc:
                self.error = exc
        self.seek(len(view), os.SEEK_CUR)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        if self.error is None:
            try:
                return super().truncate(size)
            except OSError as exc:
                self.error = exc
        return self.tell() if size is None else size

    def check(self) -> None:
        """Raise the first error of the earlier calls, if any."""
        if self.error is not None:
            raise self.error


class Hdf5Writer(Writer):
    """Appends rows to chunked datasets."""

    format = "hdf5"
    compressions = ("gzip", "lzf")
    kinds = ("array", "ragged", "number", "str", "bytes")
    dtypes = "biufc"
    most_axes = 1
    most_bytes = (1 << 32) - 1  # of a chunk, which has at least one row
    holds_empty = False

    @classmethod
    def _refusal(cls, column: Column, value: Any) -> tuple[str, str] | None:
        has_nul = column.kind == "str" and "\0" in value
        reason = "a NUL character" if has_nul else "" if is_utf8(value) else "an unpaired surrogate"
        return (f"is the string {value!r:.80} with {reason} in it", "lmdb") if reason else None

    def _open(self) -> None:
        h5py = require("h5py", extra="hdf5", purpose="Writing HDF5")
        self._count = 0
        self._file = _File(self.path, "w+")
        self._blocks: dict[str, BlockSums | array[int]] = {}
        """Checksums of each chunk, or of each variable-length value."""
        self._store: File = h5py.File(self._file, "w", libver="v110", track_order=True)
        for column in self.schema.columns:
            self._create(column)

    def _create(self, column: Column) -> None:
        h5py = require("h5py", extra="hdf5", purpose="Writing HDF5")
        fixed = column.kind in ("array", "number")
        if column.kind == "str":
            dtype = h5py.string_dtype("utf-8")
        elif column.kind == "bytes":
            dtype = h5py.vlen_dtype(np.uint8)
        else:
            dtype = np.dtype(column.dtype) if fixed else h5py.vlen_dtype(np.dtype(column.dtype))
        shape = column.shape if fixed else ()
        dataset = self._store.create_dataset(
            column.name,
            (0, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(self._chunk_rows(dtype if fixed else None, shape), *shape),
            compression=self.compression if fixed else None,
        )
        self._blocks[column.name] = BlockSums(dataset.chunks[0] * column.row_bytes) if fixed else array("I")
        if column.kind == "bytes":
            dataset.attrs[META] = np.bytes_("bytes")

    def _chunk_rows(self, dtype: np.dtype[np.generic] | None, shape: tuple[int, ...]) -> int:
        row_bytes = _REFERENCE_BYTES if dtype is None else dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        rows = max(1, _CHUNK_BYTES // max(1, row_bytes))
        return 1 << (int(rows).bit_length() - 1)

    def write(self, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        stop = self._count + len(samples)
        try:
            for column in self.schema.columns:
                dataset = self._store[column.name]
                dataset.resize(stop, 0)
                self._write_column(column, dataset, [sample[column.name] for sample in samples])
        except (OSError, RuntimeError):
            self._file.check()  # the cause, if the disk is to blame
            raise
        self._file.check()
        self._count = stop

    # Any: the values of a field.
    def _write_column(self, column: Column, dataset: Dataset, values: list[Any]) -> None:
        stop = self._count + len(values)
        sums = self._blocks[column.name]
        if isinstance(sums, BlockSums):
            rows = np.stack(values) if column.kind == "array" else np.array(values, column.dtype)
            rows = np.ascontiguousarray(rows, column.dtype)
            dataset[self._count : stop] = rows
            sums.add(rows.reshape(-1).view(np.uint8))
        else:
            self._write_varying(column, dataset, values)
            sums.extend(map(value_sum, values))

    def _write_varying(self, column: Column, dataset: Dataset, values: list[object]) -> None:
        """Write values of different lengths; h5py's own assignment would take values of equal length for a table."""
        h5py = require("h5py", extra="hdf5", purpose="Writing HDF5")
        rows = np.empty(len(values), object)
        for place, value in enumerate(values):
            rows[place] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        space = dataset.id.get_space()
        space.select_hyperslab((self._count,), (len(values),))
        dataset.id.write(h5py.h5s.create_simple((len(values),)), space, rows, h5py.h5t.py_create(dataset.dtype))

    def finish(self, summary: JsonObject) -> None:
        for name, sums in self._blocks.items():
            found = sums.finish() if isinstance(sums, BlockSums) else np.array(sums, np.uint32)
            self._store[name].attrs[SUMS] = found
        # Of fixed length: strings of variable length lie in a heap, and damage there makes the HDF5 library loop.
        self._store.attrs[META] = np.bytes_(json.dumps(self.sealed(summary)))
        self._store.close()
        self._file.check()
        self.close()

    def close(self) -> None:
        self._store.close()
        self._file.close()


def stored(path: Path) -> JsonObject | None:
    """Return the stored summary; None if there is none."""
    h5py = require("h5py", extra="hdf5", purpose="Reading HDF5")
    with h5py.File(path, "r") as store:
        meta = store.attrs.get(META)
    try:
        metadata = json.loads(meta) if isinstance(meta, (bytes, str)) else None
    except ValueError:
        return None
    return metadata if isinstance(metadata, dict) and "feedline" in metadata else None
