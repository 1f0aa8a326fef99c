"""HDF5 files as one dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.hdf5.files import OpenFile, OpenFiles
from feedline.datasets.formats.hdf5.part import NUMBERS, UNREADABLE, Part, Parts, inspect, reading
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceChanged
from feedline.system.failures import words
from feedline.system.handle import Handle
from feedline.system.sizes import byte_count


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
        swmr: read while another process writes in SWMR mode. `refresh` counts samples that were added.
        cache_bytes: how much memory a process may use to cache decompressed chunks: bytes, or a text such as "64MB".
        external: True to also read data stored in other files: external links, external storage, virtual datasets. The
            author of the file decides which files these are, so set it only for files that you trust.

    Raises:
        BadOption: there is no such field, fields differ in length, or files differ in their fields.
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
        swmr: bool = False,
        cache_bytes: int | str = 64 << 20,
        external: bool = False,
    ) -> None:
        super().__init__(transform)
        self.cache_bytes = byte_count("cache_bytes", cache_bytes, least=0)
        self.swmr = bool(swmr)
        self.external = bool(external)
        first, *others = found_files(paths, (".h5", ".hdf5"))
        part, self._shape, self._fields = inspect(first, fields, swmr=swmr, external=self.external)
        # Threads have copies of the dataset; all share this object, so each sees samples that `refresh` adds.
        self._parts = Parts([part, *(self._part(other, first) for other in others)])
        opener = partial(OpenFiles, self._parts, self._fields, self.cache_bytes, swmr=self.swmr)
        self._files = Handle(opener, OpenFiles.close, close_inherited=True)

    def _part(self, path: str, first: str) -> Part:
        """Return the metadata of another file, whose fields must match those of the first."""
        part, _, fields = inspect(path, self._shape.names, swmr=self.swmr, external=self.external)
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
        return [part.path for part in self._parts.parts]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, as in the files."""
        return self._shape.names

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        """How many samples each chunk has, in order: the sizes to pass to `feedline.samplers.BlockSampler`.

        These are the chunks of the field with the largest rows. Rows that are not chunked count as chunks of 1 MiB.
        """
        parts = [
            (np.arange(0, part.length, part.chunk_rows, dtype=np.int64), part.length) for part in self._parts.parts
        ]
        return np.concatenate([np.diff(starts, append=length) for starts, length in parts])

    def __len__(self) -> int:
        return int(self._parts.ends[-1])

    def refresh(self) -> int:
        """Count the samples of the last file again, and return the total number of samples.

        For files that grow. Call it where the order is made, before an epoch. With `swmr`, a worker process refreshes
        its own copy of the dataset when it receives the index of a sample that the copy does not have yet.

        Raises:
            SourceChanged: the file has fewer samples than before, or samples of another form.
        """
        before = self._parts.parts[-1]
        with reading(swmr=self.swmr):
            self.close()
            part, _, fields = inspect(before.path, self._shape.names, swmr=self.swmr, external=self.external)
        if fields != self._fields or part.length < before.length:
            raise SourceChanged(
                f"{part.path} has changed, not just grown: it had {before.length} samples of {self._form()} and now "
                f"has {part.length}. Create the dataset again."
            )
        self._parts.replace_last(part)
        return len(self)

    def _checked(self, indices: Iterable[Any]) -> Indices:
        try:
            return super()._checked(indices if isinstance(indices, np.ndarray) else (indices := list(indices)))
        except IndexError:
            if not self.swmr or self.refresh() <= max(indices):
                raise
            return super()._checked(indices)

    # Any: a loader's batch.
    def read_columns(self, indices: Indices) -> Any:
        if not all(field.is_stackable for field in self._fields):
            self._checked(indices)
            return None  # without reading: collating would read them again
        return super().read_columns(indices)

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        count = len(indices)
        columns: list[object] = [
            empty((count, *field.row_shape), field.dtype) if field.kind == NUMBERS else [None] * count
            for field in self._fields
        ]
        for number, rows, places in self._split(indices):
            with reading(swmr=self.swmr):
                self._fill(self._files.get().get(number), columns, rows, places)
        return columns

    def _fill(self, file: OpenFile, columns: list[object], rows: Indices, places: Indices | None) -> None:
        for field, stored, out in zip(self._fields, file.fields, columns, strict=True):
            try:
                stored.fill(out, rows, places)
            except FeedlineError:
                raise
            except UNREADABLE as exc:
                raise CorruptSource(
                    f"Rows {rows.min()} to {rows.max()} of field {field.name!r} of {file.part.path} cannot be read: "
                    f"{words(exc)}."
                ) from exc

    def _split(self, indices: Indices) -> Iterator[tuple[int, Indices, Indices | None]]:
        """Yield for each file its number, the rows to read, and their places in the batch (None for all places)."""
        if len(indices) == 0:
            return
        ends = self._parts.ends
        if len(ends) == 1:
            yield 0, indices, None
            return
        owners = np.searchsorted(ends, indices, side="right")
        for number in np.unique(owners).tolist():
            places = np.flatnonzero(owners == number)
            start = int(ends[number - 1]) if number else 0
            yield number, indices[places] - start, None if len(places) == len(indices) else places

    def close(self) -> None:
        self._files.close()

    def _form(self) -> str:
        return self._shape.describe([field.describe() for field in self._fields])

    def __repr__(self) -> str:
        text = super().__repr__()
        count = len(self._parts.parts)
        return text if count == 1 else f"{text[:-1]}, in {count} files)"
