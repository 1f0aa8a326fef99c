"""CSV files as a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from feedline.datasets.formats.csv.parsing import Misfit, Parser, kind_at
from feedline.datasets.formats.parquet.arrow import MappedSource
from feedline.datasets.formats.parquet.mapped import Mapped, MappedEntries, file_of, temporary
from feedline.datasets.formats.parquet.table import CACHE_BYTES, reading, types_of
from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.form import Form, VectorFields, names_in
from feedline.datasets.framework.paths import File, Paths, found_files
from feedline.datasets.framework.source import Transform
from feedline.datasets.framework.store import Cache, Entry, checked_cache
from feedline.datasets.storage.content import PACKED
from feedline.datasets.storage.ranges import side_by_side
from feedline.errors import BadOption
from feedline.system.shown import counted

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch, Schema

ENDINGS = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in ("", *PACKED))

_PART_ROWS = 1 << 16
"""Rows of a part: what a stream shuffles, and what a worker of torch's loader reads, as a whole. A guess."""


class CSVDataset(MappedSource):
    r"""The rows of CSV files as a map-style dataset; `stream()` makes an iterable one.

    When you first ask for the length or a sample, each file is read to infer types, and to check and convert all cells.
    The result is kept as an Arrow file in `cache`, which all processes and later programs map, as `ArrowDataset` does:
    after that, CSV is as fast as Arrow, and a file is read again only if it has changed.

    Cells are in UTF-8. A cell that contains delimiters, line ends or quotes is quoted with `"`, and quotes inside it
    are doubled. A missing number is NaN in a column of floats, and None in a column of integers; a missing string is
    "".

    Args:
        paths: a file, a folder (all `.csv` and `.tsv` files below it), a pattern such as `data/part-*.csv`, or a list
            of these. Files may be compressed with gzip, bzip2, xz or zstd.
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
        cache: the folder for the Arrow files, which take about as much space as the CSV files do uncompressed; True for
            the user's cache folder (`$FEEDLINE_CACHE`); False for temporary files of each process.

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
        ...     dataset = CSVDataset(path, types={"born": "int16"}, cache=False)
        ...     dataset[0]
        ...     dataset
        {'name': 'Lovelace, Ada', 'born': np.int16(1815)}
        CSVDataset(2 samples of {'name': string, 'born': int16[]})
    """

    _lazy = (*MappedSource._lazy, "_kinds", "_bytes", "_entries")
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
        cache: Cache = True,
    ) -> None:
        super().__init__(paths, fields, filters=filters, transform=transform, cache_bytes=CACHE_BYTES)
        self.types = _checked_types(types)
        if isinstance(columns, str):
            raise BadOption(f"columns={columns!r} is not a list of names.")
        self.columns = None if columns is None else tuple(columns)
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii()):
            raise BadOption(f"delimiter={delimiter!r} is not a single ASCII character that can separate cells.")
        self.delimiter = delimiter
        self.cache = checked_cache(cache)
        self._part_rows = _PART_ROWS
        self._kinds: dict[str, DataType] = {}
        """The type of each column in use, in all files."""
        self._bytes = 0
        """Bytes of the Arrow files."""
        self._entries = MappedEntries()

    def _found(self) -> Sequence[str | File]:
        """Return the files, and map all of them: their cells decide about the types."""
        files = [File.at(path) for path in found_files(self.paths, ENDINGS)]
        about = [[file.identity for file in files], self.delimiter, self.columns, self._given(), self._wanted()]
        entry = Entry.within(self.cache, "types", about, " ".join(file.stamp for file in files))
        places: dict[str, int] | None = None if entry is None else entry.load(dict)
        if places is None:
            places = {}
            for found in side_by_side(self._inferred, list(enumerate(files)), self._inspected_at_once):
                places.update({name: max(place, places.get(name, -1)) for name, place in found.items()})
        self._kinds = {name: self.types.get(name) or kind_at(place) for name, place in places.items()}
        while misfits := set(side_by_side(self._misfit, files, self._inspected_at_once)) - {""}:
            places.update(dict.fromkeys(misfits, -1))
            self._kinds.update(dict.fromkeys(misfits, kind_at(-1)))
            self._opened.clear()
        addresses = [self._mapped(file).addresses for file in files]
        self._bytes = sum(stop - start for start, stop in addresses)
        if entry is not None:
            entry.save(places)
        return files

    def _given(self) -> list[list[str]]:
        return [[name, str(kind)] for name, kind in self.types.items()]

    def _wanted(self) -> list[str] | None:
        """Return the columns to convert; None for all."""
        names = None if self.filters is not None else names_in(self.fields)
        return None if names is None else sorted(set(names))

    def _parser(self, file: File) -> Parser:
        suffixes = Path(file.path.lower()).suffixes[-2:]
        return Parser.of(file, self.columns, self.delimiter or ("\t" if ".tsv" in suffixes else ","))

    def _inferred(self, numbered: tuple[int, File]) -> dict[str, int]:
        """Return places in `KINDS` for the columns in use of a file."""
        number, file = numbered
        with reading(file, f"reading {file.path!r}"):
            parser, wanted = self._parser(file), self._wanted()
            types_of(pyarrow().schema([(name, pyarrow().null()) for name in parser.columns]), file)
            if number == 0:
                Form.of(self.fields, parser.columns, repr(file.path), has_vectors=True)
                Form.of(list(self.types) or None, parser.columns, repr(file.path))
            names = [name for name in parser.columns if wanted is None or name in wanted]
            free = [name for name in names if name not in self.types]
            return dict.fromkeys(names, -1) | (parser.inferred(free) if free else {})

    def _misfit(self, file: File) -> str:
        """Return a column of a file whose inferred type does not fit it; "" if there is none."""
        with reading(file, f"reading {file.path!r}"):
            try:
                self._mapped(file)
            except Misfit as exc:
                return str(exc.args[0])
        return ""

    def _map(self, file: File) -> Mapped:
        parser = self._parser(file)
        kinds = {name: self._kinds[name] for name in parser.columns if name in self._kinds}
        types = [[name, str(kind)] for name, kind in kinds.items()]
        about = [file.identity, parser.delimiter, self.columns, types, self._part_rows]
        entry = Entry.within(self.cache, "csv", about, file.stamp)
        make = partial(self._pieces, parser, kinds)
        return (None if entry is None else self._entries.get(entry, make)) or temporary(make(), file.path)

    def _load(self, file: File, number: int, names: list[str]) -> tuple[list[object], tuple[int, int]]:
        file.check()
        columns, addresses = super()._load(file, number, names)
        # Rows that fit into memory are packed there: batches of 17 columns take a third of the time (w8_csv).
        return columns, (0, 0) if self._bytes <= self.cache_bytes else addresses

    def _touch(self, files: set[int]) -> None:
        """Check nothing: what is mapped is a copy."""

    def _pieces(self, parser: Parser, kinds: dict[str, DataType]) -> Iterator[bytes]:
        schema = pyarrow().schema(list(kinds.items()))
        yield from file_of(schema, self._parts(parser, schema, kinds))
        parser.file.check()  # a write in the meantime could have mixed old and new rows

    def _parts(self, parser: Parser, schema: Schema, kinds: dict[str, DataType]) -> Iterator[RecordBatch]:
        pa = pyarrow()
        for batch in parser.batches(kinds, self.types):
            columns = [
                column.fill_null(pa.scalar(float("nan"), column.type)) if pa.types.is_floating(column.type) else column
                for column in batch.columns
            ]
            whole = pa.RecordBatch.from_arrays(columns, schema=schema)
            for start in range(0, whole.num_rows, self._part_rows):
                yield whole.slice(start, self._part_rows)

    def __repr__(self) -> str:
        if self._known is not None:
            return super().__repr__()
        what = repr(os.fspath(self.paths[0])) if len(self.paths) == 1 else counted(len(self.paths), "path")
        return f"CSVDataset({what}, not read yet)"


def _checked_types(types: Mapping[str, object] | None) -> dict[str, DataType]:
    """Convert the given types to pyarrow's. Raises BadOption: one of them is not a type."""
    pa = pyarrow()
    found: dict[str, DataType] = {}
    for name, kind in dict(types or {}).items():
        try:
            if isinstance(kind, str):
                kind = pa.type_for_alias(kind)
            elif not isinstance(kind, pa.DataType):
                kind = pa.string() if kind is str else pa.from_numpy_dtype(kind)
        except (ValueError, TypeError, AttributeError, NotImplementedError, pa.ArrowException) as exc:
            raise BadOption(
                f"types={{{name!r}: {kind!r}}} is not a pyarrow type. Pass its name, such as 'float32', 'int64', "
                "'string', 'bool' or 'timestamp[s]'."
            ) from exc
        found[name] = kind
    return found
