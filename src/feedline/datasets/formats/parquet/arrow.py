"""Arrow files as a dataset: mapped, not decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedline.datasets.formats.parquet.mapped import Mapped
from feedline.datasets.formats.parquet.table import RowGroupSource
from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.paths import File

if TYPE_CHECKING:
    from pyarrow import Table


class MappedSource(RowGroupSource):
    """Base of datasets of mapped Arrow files, whose record batches are row groups."""

    _most_open = 1 << 16

    def _map(self, file: File) -> Mapped:
        """Map a file, or what was derived from it."""
        return Mapped.of(file)

    def _mapped(self, file: File) -> Mapped:
        def make() -> tuple[Mapped, int]:
            file.check()
            return self._map(file), 1

        mapped: Mapped = self._opened.load(file.path, make)
        return mapped

    def _schema_and_counts(self, file: File) -> tuple[object, list[int]]:
        mapped = self._mapped(file)
        return mapped.schema, [mapped.row_count(batch) for batch in range(mapped.count)]

    def _decoded(self, file: File, number: int, names: list[str]) -> Table:
        return pyarrow().Table.from_batches([self._mapped(file).batch(number, names)])

    def _load(self, file: File, number: int, names: list[str]) -> tuple[list[object], tuple[int, int]]:
        mapped = self._mapped(file)
        return mapped.batch(number, names).columns, mapped.addresses

    def _touch(self, files: set[int]) -> None:
        for number in files:  # mapped data would change or vanish under us
            self._layout.files[number].check()


class ArrowDataset(MappedSource):
    """The rows of Arrow IPC or Feather files as a map-style dataset.

    Files are memory-mapped: all workers share the pages that the system has read, and samples come from there without
    decoding. Record batches act as row groups. Those of compressed files (Feather's default) are decoded and kept, as
    `ParquetDataset` keeps row groups. Both Arrow formats are supported, files and streams; Hugging Face datasets caches
    streams.

    Args:
        paths: a file, a folder (all `.arrow`, `.feather` and `.ipc` files below it), a pattern, or a list of these.
        fields: as in `ParquetDataset`.
        filters: as in `ParquetDataset`; Arrow files have no statistics, so each file is scanned in full once.
        transform: applied to each sample.
        cache_bytes: how much decoded data each process keeps; mapped data does not count.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadOption: an option has an invalid value.
        SourceError: at first use: a file is missing, or files do not fit together.
        CorruptSource: a file is damaged or not an Arrow file.
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
