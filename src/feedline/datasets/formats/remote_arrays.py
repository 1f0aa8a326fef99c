"""Arrays in .npy files on web servers and in object stores, of which only the rows that are needed are fetched."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.array_file import npy_header
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.remote_files import is_remote
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.ranges import coalesced, side_by_side
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption, CorruptSource
from feedline.system.handle import Handle
from feedline.system.sizes import byte_count

_HEADER_BYTES = 4096
"""Bytes to read for the header of a file. NumPy pads it to 64 or 128 bytes, unless there are many axes."""

Given = str | tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True)
class _Array:
    """An array in a remote file."""

    address: str
    version: Version
    offset: int
    """Where its first row begins."""
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def rows(self, content: bytes | memoryview) -> NDArray[np.generic]:
        return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a row is, and where it goes."""

    shard: int
    """The number of the array."""
    start: int
    stop: int
    place: int


class RemoteArrays(TableSource):
    """Rows of .npy files on web servers and in object stores as a map-style dataset.

    Only the headers are read at first. A batch then fetches the rows that it needs; rows that lie close together share
    a request. `stream()` fetches whole pieces, in order or shuffled.

    Args:
        arrays: the address of a .npy file, or a tuple or dict of these. A sample has the same form, with a row of each.
        fields: which of several named arrays to use, and in what form: see `HDF5Dataset`. All by default.
        transform: applied to each sample.
        cache_bytes: how much of the files each process keeps in memory for streams.
        remote: how the files are read.

    Raises:
        BadOption: an address is not one, arrays differ in length, or an array cannot be read row by row.
        CorruptSource: a file is incomplete, or not a .npy file.
        SourceError: a file does not exist, or cannot be reached.

    Example:
        >>> import fsspec
        >>> import numpy as np
        >>> from feedline.datasets import RemoteArrays
        >>> with fsspec.open("memory://bucket/x.npy", "wb") as file:
        ...     np.save(file, np.arange(12).reshape(6, 2))
        >>> dataset = RemoteArrays("memory://bucket/x.npy")
        >>> dataset
        RemoteArrays(6 samples of int64[2])
        >>> dataset[4].tolist()
        [8, 9]
        >>> dataset.close()
    """

    is_remote = True
    _groups_at_once = upcoming.MOST

    def __init__(
        self,
        arrays: Given,
        fields: Fields = None,
        *,
        transform: Transform | None = None,
        cache_bytes: int | str = "256 MB",
        remote: Remote | None = None,
    ) -> None:
        super().__init__(transform)
        self.remote = checked_remote(remote)
        addresses, self._shape = _chosen(arrays, fields)
        self._storage: Handle[Storage] = Handle(
            functools.partial(Storage, self.remote, addresses, is_common=True), Storage.close
        )
        self._blocks = BoundedCache[int, list[NDArray[np.generic]]](byte_count("cache_bytes", cache_bytes, least=0))
        """Rows of all arrays, by the number of their group."""
        self._arrays = side_by_side(self._looked_at, addresses, self.remote.requests)
        lengths = {array.shape[0] for array in self._arrays}
        if len(lengths) > 1:
            counts = ", ".join(f"{shown_address(one.address)} has {one.shape[0]}" for one in self._arrays)
            raise BadOption(f"Arrays of one dataset must have the same number of rows, but {counts}.")
        self._count = lengths.pop()
        largest = max(array.row_bytes for array in self._arrays)
        self._group_rows = max(1, disk_cache.PIECE_BYTES // largest)
        """Rows in a group: about a piece of the array with the largest rows."""

    def _looked_at(self, address: str) -> _Array:
        with closing(self._storage.get().open(address)) as blob:
            header = io.BytesIO(blob.read(0, min(_HEADER_BYTES, blob.size)))
            shape, dtype = npy_header(header, blob.name)
            blob.check()
            found = _Array(address, Version(blob.size, blob.tag), header.tell(), shape, dtype)
            if not found.row_bytes:
                raise BadOption(f"{blob.name} has the shape {shape}: its rows are empty, so there is nothing to read.")
            if found.offset + shape[0] * found.row_bytes > blob.size:
                raise CorruptSource(
                    f"{blob.name} has {blob.size} bytes, but an array of shape {shape} and {dtype} needs "
                    f"{found.offset + shape[0] * found.row_bytes}. Its end is missing: write or upload it again."
                )
        return found

    def __len__(self) -> int:
        return self._count

    @property
    def row_group_sizes(self) -> NDArray[np.int64]:
        """How many rows each part of about 2 MB has; `feedline.samplers.BlockSampler` needs this."""
        return np.diff(np.append(np.arange(0, self._count, self._group_rows), self._count))

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 8) -> BlockStream:
        """Return an iterable dataset of the same samples, which reads the files part by part.

        With `shuffle`, parts of about 2 MB come in a new random order in every epoch, and the samples of each `window`
        of parts are shuffled together. Raises BadOption: an option has an invalid value.
        """
        return BlockStream(self, shuffle=shuffle, seed=seed, window=window)

    def _open(self, number: int) -> Blob:
        array = self._arrays[number]
        return self._storage.get().open(array.address, array.version)

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        columns = [empty((len(indices), *array.shape[1:]), array.dtype) for array in self._arrays]
        wanted = [
            _Row(number, start, start + array.row_bytes, place)
            for number, array in enumerate(self._arrays)
            for place, start in enumerate((array.offset + indices * array.row_bytes).tolist())
        ]
        spans = coalesced(wanted, is_local=lambda number: False)
        with ExitStack() as stack:
            blobs = [stack.enter_context(closing(self._open(number))) for number in range(len(self._arrays))]
            contents = side_by_side(lambda one: blobs[one.shard].read(one.start, one.stop), spans, self.remote.requests)
            for blob in blobs:
                blob.check()  # needed for stores that cannot serve a specific version
        for span, content in zip(spans, contents, strict=True):
            array = self._arrays[span.shard]
            for row in span.ranges:
                found = array.rows(memoryview(content)[row.start - span.start : row.stop - span.start])
                columns[span.shard][row.place] = found[0]
        return list(columns)

    def _columns_in_blocks(self, indices: Indices, empty: Empty) -> list[object]:
        columns = [empty((len(indices), *array.shape[1:]), array.dtype) for array in self._arrays]
        groups = indices // self._group_rows
        for group in np.unique(groups).tolist():
            is_own = groups == group
            rows = indices[is_own] - group * self._group_rows
            for column, block in zip(columns, self._block(group), strict=True):
                column[is_own] = block[rows]
        return list(columns)

    def _load_range(self, start: int, stop: int) -> None:
        """Read samples that are needed soon into memory."""
        for group in range(start // self._group_rows, (stop - 1) // self._group_rows + 1):
            self._block(group)

    def _block(self, group: int) -> list[NDArray[np.generic]]:
        return self._blocks.load(group, functools.partial(self._read_block, group))

    def _read_block(self, group: int) -> tuple[list[NDArray[np.generic]], int]:
        def read(number: int) -> NDArray[np.generic]:
            array = self._arrays[number]
            start, stop = array.offset + np.array([first, last]) * array.row_bytes
            with closing(self._open(number)) as blob:
                content = blob.read(int(start), int(stop))
                blob.check()
            return array.rows(content)

        first, last = group * self._group_rows, min((group + 1) * self._group_rows, self._count)
        found = side_by_side(read, range(len(self._arrays)), self.remote.requests)
        return found, sum(block.nbytes for block in found)

    def _groups_in_memory(self) -> int:
        """Return how many groups can be in memory at a time."""
        return self._blocks.limit // (self._group_rows * sum(array.row_bytes for array in self._arrays))

    def _addresses(self) -> list[str]:
        """Return the addresses of all files, for states of streams."""
        return [array.address for array in self._arrays]

    def close(self) -> None:
        """Close connections, and drop rows that are kept in memory. Reading a sample opens them again."""
        self._upcoming.close()
        self._storage.close()
        self._blocks.clear()

    def _form(self) -> str:
        return self._shape.describe([f"{one.dtype}[{', '.join(map(str, one.shape[1:]))}]" for one in self._arrays])


def _chosen(arrays: object, fields: Fields) -> tuple[list[str], Form]:
    """Return the addresses of the chosen arrays, and the form of a sample. Raises BadOption: they are none."""
    named = dict(arrays) if isinstance(arrays, Mapping) else None
    given: Iterable[object] = (
        named.values() if named is not None else arrays if isinstance(arrays, tuple) else (arrays,)
    )
    addresses = list(given)
    for address in addresses:
        if not isinstance(address, str) or not is_remote(address):
            shown = shown_address(address) if isinstance(address, str) else repr(address)
            raise BadOption(
                f"{shown} is not an address such as s3://bucket/x.npy or https://host/x.npy. ArrayDataset reads arrays "
                "in memory and in local files."
            )
    if not addresses:
        raise BadOption("RemoteArrays needs the address of at least one array.")
    if named is not None:
        form = Form.of(fields, named, "the dict")
        return [str(named[name]) for name in form.names], form
    if fields is not None:
        raise BadOption(f"fields={fields!r} selects arrays by name, but these arrays have no names. Leave it out.")
    names = tuple(f"array {number}" for number in range(len(addresses)))
    return [str(one) for one in addresses], Form(names, None, is_one=not isinstance(arrays, tuple))
