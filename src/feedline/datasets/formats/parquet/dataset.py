"""Parquet files as a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from feedline.datasets.formats.parquet.blob_file import REQUESTS, BlobFile, chunks_of
from feedline.datasets.formats.parquet.layout import Footer
from feedline.datasets.formats.parquet.mapped import MappedEntries, file_of, validate
from feedline.datasets.formats.parquet.table import CACHE_BYTES, RowGroupSource
from feedline.datasets.formats.parquet.values import pyarrow, shape_of
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.checksums import check_seal
from feedline.datasets.framework.form import VectorFields, check_count, check_shapes
from feedline.datasets.framework.paths import File, Paths, found_files
from feedline.datasets.framework.remote_files import RemoteFile, found_remote, is_remote
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache, Entry, cache_home, checked_cache
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import CorruptSource
from feedline.system.handle import Handle

if TYPE_CHECKING:
    from pyarrow import Table


class ParquetDataset(RowGroupSource):
    """The rows of Parquet files as a map-style dataset.

    A batch reads each row group that it needs once, and only the columns you name. Each process keeps up to
    `cache_bytes` of decoded row groups, and a file is open only while a row group is being read. With the default
    collate function, feedline loaders read batches as columns.

    Nothing is read before it is needed. Files are first opened when you ask for the length, a sample, the repr or a
    stream of remote files.

    Args:
        paths: a file, a folder (all `.parquet` files below it), a pattern such as `data/part-*.parquet`, or a list of
            these. Files of a folder or pattern come in natural order: `part-9` before `part-10`. The same works in a
            store: `s3://bucket/train/*.parquet`, `gs://bucket/train/`; and for files on web servers: `https://...`.
        fields: which columns to return, and in which form: a name for the value itself, a tuple of names for tuples, a
            list of names for dicts, a dict from your own names to columns; None for dicts of all columns. In a dict or
            tuple, a list of columns is one vector: `{"x": ["f0", "f1", "f2"], "y": "label"}`.
        filters: which rows to keep: a pyarrow expression, or conditions such as `[("year", ">=", 2020)]`, all of which
            must hold; in a list of lists, one inner list must hold. Rows for which the filter is false or null are not
            in the dataset. Row groups that cannot match, by their statistics, are not read.
        transform: applied to each sample.
        cache_bytes: how much decoded data each process keeps.
        cache: a folder for decoded row groups, stored as Arrow files that all processes map, or True for the user's
            cache folder (`$FEEDLINE_CACHE`). Each row group is then decoded once, instead of once per process and again
            after each eviction. Use it for random order over data larger than `cache_bytes`. It takes as much disk
            space as the columns take in memory.
        remote: how remote files are read.

    Raises:
        MissingExtra: pyarrow, or a package that a store needs, is not installed.
        BadOption: an option has an invalid value.
        SourceError: at first use: a file is missing, or files do not fit together; at any time: a file is unreachable.
        CorruptSource: a file is damaged or not a Parquet file.
        SourceChanged: a file was written to while it was in use.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile, pathlib
        >>> from feedline.datasets import ParquetDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.parquet")
        ...     pq.write_table(pa.table({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}), path)
        ...     dataset = ParquetDataset(path, filters=[("born", ">", 1900)])
        ...     print(dataset)
        ...     dataset[0]
        ParquetDataset(2 samples of {'name': string, 'born': int64[]}, filters=[('born', '>', 1900)])
        {'name': 'Alan', 'born': np.int64(1912)}
    """

    _lazy = (*RowGroupSource._lazy, "_remote_addresses", "_storage", "_entries")
    _endings = (".parquet",)
    _module = "pyarrow.parquet"
    _most_open = 64 << 20

    def __init__(
        self,
        paths: Paths,
        fields: VectorFields = None,
        *,
        filters: object = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
        cache: Cache = False,
        remote: Remote | None = None,
    ) -> None:
        super().__init__(paths, fields, filters=filters, transform=transform, cache_bytes=cache_bytes)
        self.cache = checked_cache(cache)
        self._entries = MappedEntries()
        self.is_remote = any(map(is_remote, self.paths))
        self._inspected_at_once = REQUESTS if self.is_remote else self._inspected_at_once
        self.remote = checked_remote(remote)
        self._remote_addresses: list[str] = []
        """The addresses of all files, once they were found: the storage has the same list."""
        opener = partial(Storage, self.remote, self._remote_addresses, is_common=True)
        self._storage: Handle[Storage] = Handle(opener, Storage.close)

    def _found(self) -> Sequence[str | File]:
        if not self.is_remote:
            return super()._found()
        storage, found = self._storage.get(), list[str | File]()
        for path in self.paths:
            if is_remote(path):
                found += found_remote(path, storage, self._endings)
            else:
                found += found_files([path], self._endings)
        self._remote_addresses[:] = [file.address if isinstance(file, RemoteFile) else str(file) for file in found]
        return found

    def _at(self, path: str) -> File:
        if not is_remote(path):
            return super()._at(path)
        blob = self._storage.get().open(path)
        blob.close()
        return RemoteFile(blob.name, blob.size, blob.tag, path)

    # object: a file as pyarrow takes it.
    @contextmanager
    def _reading(self, file: File) -> Iterator[object]:
        if not isinstance(file, RemoteFile):
            with pyarrow().OSFile(file.path) as opened:
                yield opened
            return
        blob = self._storage.get().open(file.address, file.version)
        try:
            yield BlobFile(blob)
        finally:
            blob.check()  # needed for stores that cannot serve a specific version
            blob.close()

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 4) -> BlockStream:
        """Return an iterable dataset of the same samples, as `RowGroupSource.stream` does.

        Remote files are opened now: otherwise each worker would open them itself and might find different ones.
        """
        if self.is_remote:
            len(self)
        return super().stream(shuffle=shuffle, seed=seed, window=window)

    def close(self) -> None:
        super().close()
        self._storage.close()

    def _schema_and_counts(self, file: File) -> tuple[object, list[int]]:
        with self._reading(file) as opened:
            metadata = pyarrow("pyarrow.parquet").ParquetFile(opened, pre_buffer=False).metadata
        schema = metadata.schema.to_arrow_schema()
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if sum(counts) != metadata.num_rows:
            raise CorruptSource(
                f"The footer of {file.path!r} is damaged: the file has {metadata.num_rows} rows according to it, and "
                f"its row groups {sum(counts)}. Copy or write the file again."
            )
        stored = (metadata.metadata or {}).get(b"feedline")
        if stored is not None:
            check_seal(repr(file.path), stored)
        check_count(repr(file.path), stored, sum(counts))
        check_shapes(repr(file.path), stored, {field.name: shape_of(field.type) for field in schema})
        self._opened.put(file.identity, metadata, metadata.serialized_size)
        return schema, counts

    def _masks(self, footer: Footer, condition: object) -> list[tuple[int, object]]:
        # Reads only the columns in the condition, and skips row groups that cannot match by their statistics.
        ds = pyarrow("pyarrow.dataset")
        checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        format_ = ds.ParquetFileFormat(default_fragment_scan_options=checked)
        masks = []
        with self._reading(footer.file) as opened:
            for part in format_.make_fragment(opened).split_by_row_group(filter=condition):
                table = part.scanner(columns={"kept": condition}, use_threads=False).to_table()
                masks.append((part.row_groups[0].id, table.column("kept")))
        return masks

    def _decoded(self, file: File, number: int, names: list[str]) -> Table:
        pq = pyarrow("pyarrow.parquet")
        file.check()
        # Another thread may have evicted the metadata; if so, read it again.
        metadata = self._opened.get(file.identity)
        with self._reading(file) as opened:
            reader = pq.ParquetFile(opened, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
            if metadata is None:
                self._opened.put(file.identity, reader.metadata, reader.metadata.serialized_size)
            if isinstance(opened, BlobFile):
                opened.fetch(chunks_of(opened.blob, reader.metadata, number, names))
            table = reader.read_row_group(number, columns=names, use_threads=False)
        validate(table, file, number)
        file.check()  # a write in the meantime could have mixed old and new data
        return table

    def _load(self, file: File, number: int, names: list[str]) -> tuple[list[object], tuple[int, int]]:
        if self.cache is not False:
            file.check()
            folder = cache_home() if self.cache is True else self.cache
            entry = Entry.at(folder, "arrow", file.identity, file.stamp, part=[number, sorted(names)])
            mapped = self._entries.get(entry, partial(self._unpacked, file, number, names))
            if mapped is not None:
                table = pyarrow().Table.from_batches(map(mapped.batch, range(mapped.count)), mapped.schema)
                return [table.column(name) for name in names], mapped.addresses
        return super()._load(file, number, names)

    def _unpacked(self, file: File, number: int, names: list[str]) -> Iterator[bytes]:
        table = self._decoded(file, number, names).combine_chunks()
        yield from file_of(table.schema, table.to_batches())

    def _advice(self) -> str:
        kept = "Give cache=, a folder where they are kept decoded for all processes, or: "
        return ("" if self.cache is not False else kept) + super()._advice()
