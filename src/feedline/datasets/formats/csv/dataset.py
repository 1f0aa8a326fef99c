"""CSV files as a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.csv.rows import (
    LONGEST_ROW,
    UTF16,
    Unclosed,
    checked_columns,
    checked_types,
    named_rows,
    parts,
    wider,
)
from feedline.datasets.formats.parquet.layout import Footer
from feedline.datasets.formats.parquet.mapped import Unpacked
from feedline.datasets.formats.parquet.table import CACHE_BYTES, RowGroupSource, types_of
from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.form import VectorFields, names_in
from feedline.datasets.framework.paths import File, Paths
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache
from feedline.datasets.storage.unpacking import Bytes, packing_of, unpacked_file
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.handle import Handle
from feedline.system.sizes import byte_count

if TYPE_CHECKING:
    from pyarrow import Schema, Table

PART_BYTES = 1 << 20
"""Default number of bytes to parse at a time, the same as in pyarrow."""

PACKED = (".gz", ".bz2", ".xz", ".zst")
ENDINGS = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in ("", *PACKED))

_LARGEST_PART = 1 << 28
"""Maximum size in bytes of a part: it is parsed at once, and pyarrow counts bytes in 31 bits."""


@dataclass(frozen=True)
class Text:
    """The layout of one file, found on its first read."""

    columns: tuple[str, ...]
    packing: str | None
    """The compression of the file, or None."""
    starts: NDArray[np.int64]
    """Offset of each part in the uncompressed file, and the end of the last part."""
    rows: NDArray[np.int64]
    """The number of the first row of each part, and the number after the last row. The first row of the file is row 1.
    """


class CSVDataset(RowGroupSource):
    r"""The rows of CSV files as a map-style dataset; `stream()` makes an iterable one.

    A file is read once when you first ask for the length or a sample, to count rows, infer types and check all cells.
    After that, parts of it are read and parsed as samples need them, and each process keeps up to `cache_bytes` of
    them. For long use in random order, `feedline pack` the file or set `cache`.

    Cells are in UTF-8. A cell that contains delimiters, line ends or quotes is quoted with `"`, and quotes inside it
    are doubled. A missing number is NaN in a column of floats, and None in a column of integers; a missing string is
    "".

    Args:
        paths: a file, a folder (all `.csv` and `.tsv` files below it), a pattern such as `data/part-*.csv`, or a list
            of these. To reach a row, files compressed with gzip, bzip2, xz or zstd are read from the beginning: use
            them for streams in order, or with `cache`.
        fields: as for `ParquetDataset`: a column for the value itself, a tuple of names for tuples, a list of names for
            dicts, a dict that maps new names to columns; None for dicts of all columns. In a dict or tuple, a list of
            columns is one vector.
        types: the types of columns, as pyarrow names them ("float32", "int8", "string", "bool", "timestamp[s]"), or
            NumPy or Python types (`np.float32`, `str`). The type of any other column is inferred from all of its cells,
            in all files: int64, float64, bool, dates, else string.
        columns: names of the columns, for files without a header; None if the first row names the columns.
        delimiter: the character between cells; None for tabs in `.tsv` files and commas in all others.
        filters: as for `ParquetDataset`.
        transform: applied to each sample.
        cache_bytes: how much parsed data each process keeps.
        part_bytes: how much of a file is read and parsed at a time. `stream(window=...)` counts such parts.
        cache: a folder where parsed parts are kept as Arrow files, as for `ParquetDataset`.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadOption: an option has an invalid value.
        SourceError: at first use: a file is missing, or the files do not have the same columns.
        CorruptSource: a row has too many or too few cells, or a cell is not of its type; names file and row.
        SourceChanged: a file was written to while it was in use.

    Example:
        >>> import tempfile, pathlib
        >>> from feedline.datasets import CSVDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.csv")
        ...     _ = path.write_text('name,born\n"Lovelace, Ada",1815\nAlan,1912\n')
        ...     dataset = CSVDataset(path, types={"born": "int16"})
        ...     dataset[0]
        ...     dataset
        {'name': 'Lovelace, Ada', 'born': np.int16(1815)}
        CSVDataset(2 samples of {'name': string, 'born': int16[]})
    """

    _lazy = (*RowGroupSource._lazy, "_texts", "_kinds", "_unsure", "_unzipped_once", "_unzipping")
    _endings = ENDINGS
    _module = "pyarrow.csv"

    def __init__(
        self,
        paths: Paths,
        fields: VectorFields = None,
        *,
        types: Mapping[str, object] | None = None,
        columns: Iterable[str] | None = None,
        delimiter: str | None = None,
        filters: object = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
        part_bytes: int | str = PART_BYTES,
        cache: Cache = False,
    ) -> None:
        super().__init__(paths, fields, filters=filters, transform=transform, cache_bytes=cache_bytes, cache=cache)
        self.types = checked_types(types)
        self.columns = checked_columns(columns)
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii()):
            raise BadOption(f"delimiter={delimiter!r} is not a single ASCII character that can separate cells.")
        self.delimiter = delimiter
        self.part_bytes = min(byte_count("part_bytes", part_bytes, least=1), _LARGEST_PART)
        self._texts: dict[str, Text] = {}
        self._kinds: dict[str, object] = {}
        """The type of each column, in all files."""
        self._unsure: set[str] = set()
        """Columns whose parts differ in type, so the common type may not fit all cells."""
        self._unzipped_once: set[str] = set()
        """Compressed files all of whose parts this process has put into `cache`."""
        self._unzipping: Handle[dict[str, Bytes]] = Handle(dict, dict.clear, per_thread=True, close_inherited=True)

    def _schema_and_counts(self, file: File) -> tuple[object, list[int]]:
        with open(file.path, "rb") as opened:
            packing = packing_of(opened.read(8))
        columns, starts, counts = self.columns, [0], list[int]()
        first_row = 1 if columns is not None else 2
        kinds: dict[str, object] = {}
        with open(file.path, "rb") as opened:
            read = opened.read if packing is None else unpacked_file(file.path, packing).take
            try:
                for part in parts(read, self._delimiter(file), self.part_bytes):
                    content, ends, start = part.content, part.ends, part.start
                    if columns is None:
                        head = int(ends[0])
                        columns = self._header(content[:head], file)
                        content, ends, start = content[head:], ends[1:] - head, start + head
                    if not counts:
                        starts = [start]
                    if len(ends):
                        row = first_row + sum(counts)
                        table = self._parsed(content, file, columns, row, len(ends), self._columns_to_parse(columns))
                        self._check_texts(table.schema, content, file, columns, row)
                        kinds = self._widened(kinds, {field.name: field.type for field in table.schema})
                        counts.append(len(ends))
                        starts.append(start + len(content))
            except UTF16 as exc:
                raise CorruptSource(
                    f"{file.path!r} is in UTF-16, but CSVDataset reads UTF-8. Convert it, for example with "
                    f'`iconv -f UTF-16 -t UTF-8`, or write it as "CSV UTF-8" from Excel.'
                ) from exc
            except Unclosed as exc:
                raise CorruptSource(
                    f"{file.path!r}: a quote that is opened in row {first_row + sum(counts) + exc.args[0]} or later "
                    f"is never closed, or the row has more than {LONGEST_ROW >> 20} MiB, the maximum that CSVDataset "
                    "reads as one row. Correct that row."
                ) from exc
        if columns is None:
            raise SourceError(f"{file.path!r} is empty: it does not even have a header.")
        rows = first_row + np.cumsum([0, *counts])
        self._texts[file.path] = Text(columns, packing, np.array(starts, np.int64), rows)
        return pyarrow().schema([(name, kinds.get(name, pyarrow().null())) for name in columns]), counts

    def _header(self, content: bytes, file: File) -> tuple[str, ...]:
        if b"\0" in content:
            raise CorruptSource(
                f"{file.path!r}: the header contains zero bytes. The file is damaged, or in UTF-16, which you can "
                "convert to UTF-8 (`iconv -f UTF-16 -t UTF-8`)."
            )
        with named_rows(file, (), 1):
            schema = self._table(content, file).schema
        types_of(schema, file)
        return tuple(schema.names)

    def _check_texts(self, schema: Schema, content: bytes, file: File, columns: tuple[str, ...], row: int) -> None:
        """Raise CorruptSource for cells that are not UTF-8, unless their column is read as bytes."""
        pa = pyarrow()
        odd = [one.name for one in schema if pa.types.is_binary(one.type) and one.name not in self.types]
        if odd:
            with named_rows(file, columns, row):
                self._table(content, file, columns, odd, dict.fromkeys(odd, pa.string()))

    def _columns_to_parse(self, columns: tuple[str, ...]) -> list[str]:
        """Return the columns that have to be parsed on the first read."""
        names = names_in(self.fields) if self.filters is None else None
        return [name for name in columns if names is None or name in names] or list(columns)

    def _widened(self, kinds: dict[str, object], others: dict[str, object]) -> dict[str, object]:
        """Return types that hold the cells of both, and record the columns where that has to be verified."""
        pa = pyarrow()
        widened: dict[str, object] = {}
        for name, other in others.items():
            kind = kinds.get(name, pa.null())
            widened[name] = wider(kind, other)
            if kind != other and pa.null() not in (kind, other):
                self._unsure.add(name)
        return widened

    def _agreed(self, footers: list[Footer]) -> list[Footer]:
        pa = pyarrow()
        kinds: dict[str, object] = {}
        for footer in footers:
            kinds |= self._widened(kinds, footer.types)
        unknown = next((name for name in self.types if name not in kinds), None)
        if unknown is not None:
            raise BadOption(f"types= names {unknown!r}, but {footers[0].file.path!r} has {list(footers[0].types)}.")
        # A column without any value becomes one of missing strings.
        self._kinds = {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in kinds.items()}
        for name in sorted(self._unsure):
            if self._kinds[name] not in (pa.string(), pa.float64()) and not self._fits(name, footers):
                self._kinds[name] = pa.string()
        found = [replace(footer, types={name: self._kinds[name] for name in footer.types}) for footer in footers]
        if (unpacked := self._unpacked_to()) is not None:
            about = repr([self.delimiter, self.columns, self.part_bytes, sorted(map(str, self._kinds.items()))])
            self._unpacked = Unpacked(unpacked.folder, about)
        return found

    def _fits(self, name: str, footers: list[Footer]) -> bool:
        """True if all cells of a column are of its type."""
        try:
            for footer in footers:
                for group in footer.groups if name in footer.types else ():
                    self._decoded(footer.file, group.number, [name])
        except CorruptSource:
            return False
        finally:
            self._unzipping.close()  # so that reading samples next does not count as going back
        return True

    def _missing(self, unpacked: Unpacked, file: File, number: int, names: list[str]) -> object:
        text = self._texts[file.path]
        if text.packing is None or file.path in self._unzipped_once:
            return self._decoded(file, number, names)
        self._unzipped_once.add(file.path)
        for part in range(len(text.starts) - 1):  # all, in order: a part can only be reached from the beginning
            if part == number:
                wanted = self._decoded(file, part, names)
            else:
                unpacked.columns(file, part, names, partial(self._decoded, file, part, names))
        return wanted

    def _decoded(self, file: File, number: int, names: list[str]) -> Table:
        """Parse a part of a file into a pyarrow table."""
        text = self._texts[file.path]
        start, stop = text.starts[number : number + 2].tolist()
        row, end = text.rows[number : number + 2].tolist()
        file.check()
        if text.packing is not None:
            content = self._unzipped(file, text.packing, start, stop)
        else:
            with open(file.path, "rb") as opened:
                opened.seek(start)
                content = opened.read(stop - start)
        file.check()  # if the file was written to meanwhile, the content may mix two versions
        table = self._parsed(content, file, text.columns, row, end - row, names)
        pa = pyarrow()
        for place, field in enumerate(table.schema):
            if pa.types.is_floating(field.type) and table.column(place).null_count:
                table = table.set_column(place, field, table.column(place).fill_null(pa.scalar(np.nan, field.type)))
        return table

    def _unzipped(self, file: File, packing: str, start: int, stop: int) -> bytes:
        opened = self._unzipping.get()
        unzipped = opened.get(file.path)
        if unzipped is None or unzipped.offset > start:
            if unzipped is not None:
                self._waste.went_back = True
            unzipped = opened[file.path] = unpacked_file(file.path, packing)
        unzipped.skip(start - unzipped.offset)
        return unzipped.take(stop - start)

    def _parsed(
        self, content: bytes, file: File, columns: tuple[str, ...], row: int, count: int, names: list[str]
    ) -> Table:
        """Parse rows. Raises CorruptSource if pyarrow finds another number of rows."""
        known = self._kinds or self.types
        with named_rows(file, columns, row):
            table = self._table(content, file, columns, names, {name: known[name] for name in names if name in known})
        if table.num_rows != count:
            raise CorruptSource(
                f"{file.path!r}: pyarrow reads rows {row} to {row + count - 1} as {table.num_rows} rows. They have "
                "misplaced quotes: quotes belong around whole cells, and are doubled inside them."
            )
        return table

    def _table(
        self,
        content: bytes,
        file: File,
        columns: tuple[str, ...] | None = None,
        names: list[str] | None = None,
        types: dict[str, object] | None = None,
    ) -> Table:
        csv = pyarrow("pyarrow.csv")
        # Not read_csv, which changes signal handlers and leaves a pipe open.
        reader = csv.open_csv(
            pyarrow().BufferReader(content),
            # One thread and one block: only then do errors contain the row number.
            csv.ReadOptions(use_threads=False, column_names=columns, block_size=len(content) + 1),
            csv.ParseOptions(delimiter=self._delimiter(file), newlines_in_values=True),
            csv.ConvertOptions(include_columns=names, column_types=types),
        )
        return reader.read_all()

    def _delimiter(self, file: File) -> str:
        if self.delimiter is not None:
            return self.delimiter
        return "\t" if ".tsv" in Path(file.path.lower()).suffixes[-2:] else ","

    def _advice(self) -> str:
        packed = next((path for path, text in self._texts.items() if text.packing is not None), None)
        why = "" if packed is None else f"{packed!r} is compressed, so rows can only be reached from its start. "
        return f"{why if self._unpacked is None else ''}{super()._advice()}"

    def close(self) -> None:
        super().close()
        self._unzipping.close()

    def __repr__(self) -> str:
        if self._known is not None:
            return super().__repr__()
        return f"CSVDataset({self.paths!r}, not read yet)"
