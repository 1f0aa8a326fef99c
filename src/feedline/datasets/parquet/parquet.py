"""Parquet files as a dataset."""

from __future__ import annotations

from typing import Any

from feedline._optional import require
from feedline.datasets.bounded_cache import BoundedCache
from feedline.datasets.cache_file import Cache
from feedline.datasets.form import Fields
from feedline.datasets.packed_facts import check_count, check_shapes
from feedline.datasets.parquet.condition import checked_condition, kept_groups
from feedline.datasets.parquet.layout import Footer, Group
from feedline.datasets.parquet.mapped import validate
from feedline.datasets.parquet.table import RowGroupSource, types_of
from feedline.datasets.parquet.values import shape_of
from feedline.datasets.paths import File, Paths
from feedline.datasets.source import Transform

CACHE_BYTES = 256 << 20
"""What row groups may take in memory, per process, unless it is said otherwise."""

_FOOTERS = 64
"""Files whose footers are remembered."""

# Any, throughout: pyarrow has no types to check against.


def _parquet() -> Any:
    return require("pyarrow.parquet", extra="parquet", purpose="ParquetDataset")


class ParquetDataset(RowGroupSource):
    """The rows of Parquet files as a map-style dataset.

    A batch reads each row group that it needs once, and only the columns that are named. Row groups that were read are
    kept, up to `cache_bytes` in each process; a file is open only while one is read. With the default collate function
    loaders of feedline read batches as columns.

    Nothing is read before it is needed: files are looked at when the length, a sample or the repr is first asked for.

    Args:
        paths: a file, a folder (all `.parquet` files below it), a pattern such as `data/part-*.parquet`, or a list of
            these. Files of a folder or pattern come in natural order: `part-9` before `part-10`.
        fields: which columns, and in which form: a name for the value itself, a tuple of names for tuples, a list of
            names for dicts, a dict from names of one's own to columns; None for dicts of all columns.
        filters: which rows: an expression of pyarrow, or conditions such as `[("year", ">=", 2020)]` (all have to hold;
            of a list of lists, one of the lists). Rows for which it does not hold, or is null, are not in the dataset.
            Row groups that cannot have any, by their statistics, are not read.
        transform: applied to each sample.
        cache_bytes: how much decoded data each process keeps.
        cache: a folder where decoded row groups are kept as Arrow files, which all processes map, or True for the
            user's cache folder (`$FEEDLINE_CACHE`): each is decoded once, not once per process and whenever it is not
            in its memory. For random order over more than fits into `cache_bytes`. It takes as much of the disk as the
            columns take in memory.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadOption: an option is none.
        SourceError: at first use: a file is missing, or files do not fit together.
        CorruptSource: a file is damaged or no Parquet file.
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

    _endings = (".parquet",)

    def __init__(
        self,
        paths: Paths,
        fields: Fields = None,
        *,
        filters: Any = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
        cache: Cache = False,
    ) -> None:
        super().__init__(paths, fields, filters=filters, transform=transform, cache_bytes=cache_bytes, cache=cache)
        _parquet()
        self._footers = BoundedCache[str, Any](_FOOTERS)

    def _look(self, file: File, number: int, condition: Any) -> Footer:
        pa, pq = require("pyarrow", extra="parquet", purpose="ParquetDataset"), _parquet()
        with pa.OSFile(file.path) as opened:
            metadata = pq.ParquetFile(opened, pre_buffer=False).metadata
        schema = metadata.schema.to_arrow_schema()
        types = types_of(schema, file)
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        stored = (metadata.metadata or {}).get(b"feedline")
        check_count(repr(file.path), stored, sum(counts))
        check_shapes(repr(file.path), stored, {name: shape_of(kind) for name, kind in types.items()})
        if condition is None:
            groups = [Group(number, group, count) for group, count in enumerate(counts) if count]
        else:
            masks = checked_condition(lambda: _masks(file, condition), condition, file, list(types))
            groups = kept_groups(masks, number)
        self._footers.put(file.path, metadata)
        return Footer(file, types, groups)

    def _decoded(self, file: File, number: int, names: list[str]) -> Any:
        pa, pq = require("pyarrow", extra="parquet", purpose="ParquetDataset"), _parquet()
        file.check()
        # A thread may have dropped it by now; whoever finds none reads it again.
        metadata = self._footers.get(file.path)
        with pa.OSFile(file.path) as opened:
            reader = pq.ParquetFile(opened, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
            if metadata is None:
                self._footers.put(file.path, reader.metadata)
            table = reader.read_row_group(number, columns=names, use_threads=False)
        validate(table, file, number)
        file.check()  # had it been written to in the meantime, what was read could be a bit of both
        return table

    def close(self) -> None:
        super().close()
        self._footers.clear()


def _masks(file: File, condition: Any) -> list[tuple[int, Any]]:
    """Return for each row group that may have such rows which of them fulfil the condition.

    Only the columns that it is about are read, and of row groups whose statistics say that they have none, nothing.
    """
    ds = require("pyarrow.dataset", extra="parquet", purpose="Filters")
    fs = require("pyarrow.fs", extra="parquet", purpose="Filters")
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    fragment = format_.make_fragment(file.path, filesystem=fs.LocalFileSystem())
    masks = []
    for part in fragment.split_by_row_group(filter=condition):
        table = part.scanner(columns={"kept": condition}, use_threads=False).to_table()
        masks.append((part.row_groups[0].id, table.column("kept")))
    return masks
