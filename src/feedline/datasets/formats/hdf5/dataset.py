"""HDF5 files as one dataset."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.checked import checked_rows
from feedline.datasets.formats.hdf5.fields import (
    NUMBERS,
    UNREADABLE,
    Field,
    Part,
    dataset_of,
    inspect,
    open_file,
    stored_in,
)
from feedline.datasets.formats.hdf5.rows import ChunkCache, Rows, rows_of
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Fields, fields_with_sums
from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.errors import BadOption, CorruptSource, FeedlineError
from feedline.system.failures import words
from feedline.system.handle import Handle
from feedline.system.sizes import byte_count

if TYPE_CHECKING:
    from h5py import File

_OPEN_AT_ONCE = 64
"""Maximum number of open files. Each takes up to three descriptors, and processes often have 1,024 in all. A guess."""


class HDF5Dataset(TableSource):
    """The rows of datasets in one or several HDF5 files.

    The first axis of every HDF5 dataset counts samples. Uncompressed numbers are gathered from the mapped file straight
    into the batch. A compressed chunk is decompressed once for all samples of a batch that lie in it.

    A sample consists of NumPy arrays and scalars, `str` for strings, `bytes` for variable-length uint8 with the
    attribute feedline="bytes", and arrays of differing lengths for other variable-length fields.

    Args:
        paths: a file, a folder (all `.h5` and `.hdf5` files below it), a pattern such as "data/*.h5", or a list of
            these. The files are concatenated in order.
        fields: which datasets to read; "group/x" names one in a group. A name gives its values; a tuple of names gives
            tuples; a list gives dicts; a dict {"image": "group/x"} gives dicts with other names. All by default.
        transform: applied to each sample; batches are then made sample by sample.
        cache_bytes: how much memory a process may use to cache decompressed chunks: bytes, or a text such as "64MB".

    Raises:
        BadOption: there is no such field, its data is in another file, fields differ in length, or files differ in
            their fields.
        CorruptSource: a file is not an HDF5 file, or is incomplete.
        SourceError: a file does not exist or cannot be opened.
        MissingExtra: h5py is not installed.

    Example:
        >>> import os, tempfile
        >>> import h5py, numpy as np
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "data.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["image"] = np.zeros((100, 3, 8, 8), np.float32)
        ...     file["label"] = np.arange(100)
        >>> dataset = HDF5Dataset(path, fields=("image", "label"))
        >>> dataset
        HDF5Dataset(100 samples of (float32[3, 8, 8], int64[]))
        >>> image, label = dataset[7]
        >>> image.shape, int(label)
        ((3, 8, 8), 7)
        >>> dataset.close()
        >>> folder.cleanup()
    """

    def __init__(
        self,
        paths: Paths,
        fields: Fields = None,
        *,
        transform: Transform | None = None,
        cache_bytes: int | str = 64 << 20,
    ) -> None:
        super().__init__(transform)
        self.cache_bytes = byte_count("cache_bytes", cache_bytes, least=0)
        first, *others = found_files(paths, (".h5", ".hdf5"))
        part, self._shape, self._fields = inspect(first, fields)
        self._parts = [part, *(self._part(other, first) for other in others)]
        self._has_columns = all(field.is_stackable for field in self._fields)
        self._ends = np.cumsum([part.length for part in self._parts], dtype=np.int64)
        """Index after the last sample of each file."""
        self._chunks = ChunkCache(self.cache_bytes)
        opener: Callable[[], BoundedCache[int, _OpenFile]] = partial(BoundedCache, _OPEN_AT_ONCE)
        self._files = Handle(opener, BoundedCache.clear, close_inherited=True)

    def _part(self, path: str, first: str) -> Part:
        """Return the metadata of another file, whose fields must match those of the first."""
        part, _, fields = inspect(path, self._shape.names)
        for field, other in zip(self._fields, fields, strict=True):
            if field != other:
                raise BadOption(
                    f"Field {field.name!r} is {field.describe()} in {first}, but {other.describe()} in {path}. All "
                    "files of a dataset need the same fields: create one dataset for each kind."
                )
        return part

    @property
    def files(self) -> list[str]:
        """The paths of the files, in order."""
        return [part.path for part in self._parts]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, as in the files."""
        return self._shape.names

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """How many samples each chunk has, in order: the sizes to pass to `feedline.samplers.BlockSampler`.

        These are the chunks of the field with the largest rows. Rows that are not chunked count as chunks of 1 MiB.
        """
        starts = [(np.arange(0, part.length, part.chunk_rows, dtype=np.int64), part.length) for part in self._parts]
        return np.concatenate([np.diff(first, append=length) for first, length in starts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        count = len(indices)
        columns: list[object] = [
            empty((count, *field.row_shape), field.dtype) if field.kind == NUMBERS else [None] * count
            for field in self._fields
        ]
        for number, rows, places in self._split(indices):
            part = self._parts[number]
            file = self._files.get().load(number, partial(self._opened, number))
            part.file.check()
            for field, stored, out in zip(self._fields, file.fields, columns, strict=True):
                try:
                    stored.fill(out, rows, places)
                except FeedlineError:
                    raise
                except UNREADABLE as exc:
                    raise CorruptSource(
                        f"Rows {rows.min()} to {rows.max()} of field {field.name!r} of {part.path} cannot be read: "
                        f"{words(exc)}."
                    ) from exc
        return columns

    def _opened(self, number: int) -> tuple[_OpenFile, int]:
        return _OpenFile(self._parts[number], self._fields, self._chunks, number), 1

    def _split(self, indices: Indices) -> Iterator[tuple[int, Indices, Indices | None]]:
        """Yield for each file its number, the rows to read, and their places in the batch (None for all places)."""
        if len(self._parts) == 1 and len(indices):
            yield 0, indices, None
            return
        owners = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(owners).tolist():
            places = np.flatnonzero(owners == number)
            start = int(self._ends[number - 1]) if number else 0
            yield number, indices[places] - start, None if len(places) == len(indices) else places

    def close(self) -> None:
        self._files.close()
        self._chunks.clear()

    def _form(self) -> str:
        return self._shape.describe([field.describe() for field in self._fields])

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if len(self._parts) == 1 else f"{text[:-1]}, in {len(self._parts)} files)"


class _OpenFile:
    """One open file, and the rows of its fields. It is closed when nothing refers to it any more."""

    def __init__(self, part: Part, fields: tuple[Field, ...], cache: ChunkCache, number: int) -> None:
        self.fields: list[Rows] = []
        part.file.check()
        file: File = open_file(part.path)
        mapped = _mapped(part.path)
        part.file.check()  # it was not replaced meanwhile
        with_sums = fields_with_sums(stored_in(file, part.path))
        try:
            for field in fields:
                dataset = dataset_of(file, field.name, part.path)
                rows = rows_of(dataset, field, mapped, cache, (number, field.name))
                self.fields.append(checked_rows(rows, field, dataset) if field.name in with_sums else rows)
        except FeedlineError:
            raise
        except UNREADABLE as exc:
            raise CorruptSource(f"The contents of {part.path} cannot be read: {words(exc)}.") from exc


def _mapped(path: str) -> NDArray[np.uint8] | None:
    """Return the bytes of a file, mapped; None if the file system has no mmap: HDF5 then reads the file."""
    try:
        with open(path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return None
