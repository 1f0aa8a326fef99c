"""Arrow IPC and Feather files as a dataset."""

from __future__ import annotations

from typing import Any

from feedline._optional import require
from feedline.datasets.form import Fields
from feedline.datasets.handle import Handle
from feedline.datasets.parquet.condition import checked_condition, kept_groups, mask_of
from feedline.datasets.parquet.layout import Footer, Group
from feedline.datasets.parquet.mapped import Mapped
from feedline.datasets.parquet.parquet import CACHE_BYTES
from feedline.datasets.parquet.table import RowGroupSource, types_of
from feedline.datasets.paths import File, Paths
from feedline.datasets.source import Transform

# Any, throughout: pyarrow has no types to check against.


def _pyarrow() -> Any:
    return require("pyarrow", extra="parquet", purpose="ArrowDataset")


class ArrowDataset(RowGroupSource):
    """The rows of Arrow IPC or Feather files as a map-style dataset.

    Files are memory-mapped: all workers share what the system has read, and samples are taken from there without being
    decoded. Record batches take the part of row groups. Those of compressed files (Feather's default) are decoded, and
    kept as `ParquetDataset` keeps row groups. Both of Arrow's formats are read, files and streams: the latter are what
    Hugging Face datasets keeps in its cache.

    Args:
        paths: a file, a folder (all `.arrow`, `.feather` and `.ipc` files below it), a pattern, or a list of these.
        fields: as of `ParquetDataset`.
        filters: as of `ParquetDataset`; Arrow files have no statistics, so that all of them is looked at once.
        transform: applied to each sample.
        cache_bytes: how much decoded data each process keeps; what is mapped does not count.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadOption: an option is none.
        SourceError: at first use: a file is missing, or files do not fit together.
        CorruptSource: a file is damaged or no Arrow file.
        SourceChanged: a file was written to while it was in use.

    Example:
        >>> import pyarrow as pa, pyarrow.feather, tempfile, pathlib
        >>> from feedline.datasets import ArrowDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.feather")
        ...     pa.feather.write_feather(pa.table({"name": ["Ada", "Alan"], "born": [1815, 1912]}), path)
        ...     dataset = ArrowDataset(path, ("name", "born"))
        ...     dataset[1]
        ('Alan', np.int64(1912))
    """

    _endings = (".arrow", ".feather", ".ipc")

    def __init__(
        self,
        paths: Paths,
        fields: Fields = None,
        *,
        filters: Any = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
    ) -> None:
        super().__init__(paths, fields, filters=filters, transform=transform, cache_bytes=cache_bytes)
        _pyarrow()
        # A map that was inherited by a fork is as good as the parent's, and closing it is a matter of this process.
        self._opened: Handle[dict[str, Mapped]] = Handle(dict, dict.clear, close_inherited=True)

    def _look(self, file: File, number: int, condition: Any) -> Footer:
        mapped = Mapped.of(file)
        types = types_of(mapped.schema, file)
        batches = range(mapped.count)
        if condition is None:
            counts = [mapped.row_count(batch) for batch in batches]
            return Footer(file, types, [Group(number, batch, count) for batch, count in enumerate(counts) if count])

        def masks() -> list[tuple[int, Any]]:
            table_of = _pyarrow().Table.from_batches
            return [(batch, mask_of(table_of([mapped.batch(batch)]), condition)) for batch in batches]

        return Footer(file, types, kept_groups(checked_condition(masks, condition, file, list(types)), number))

    def _load(self, file: File, number: int, names: list[str]) -> tuple[list[Any], tuple[int, int]]:
        opened = self._opened.get()
        mapped = opened.get(file.path)
        if mapped is None:
            file.check()
            mapped = opened[file.path] = Mapped.of(file)
        return mapped.batch(number, names).columns, mapped.addresses

    def _touch(self, files: set[int]) -> None:
        for number in files:  # what is mapped would change under us, or vanish
            self._layout.files[number].check()

    def close(self) -> None:
        super().close()
        self._opened.close()
