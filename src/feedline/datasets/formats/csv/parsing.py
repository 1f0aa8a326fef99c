"""Parse a CSV file with pyarrow, in blocks: types that fit all cells, and errors that name the file and the row."""

from __future__ import annotations

import io
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.paths import File
from feedline.datasets.storage.blob import LocalBlob
from feedline.datasets.storage.content import content_of
from feedline.errors import CorruptSource
from feedline.system.failures import words

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch

LONGEST_ROW = 1 << 24
"""Bytes that are parsed at a time, and so the longest row: a quote that is never closed would take the whole file."""

_LONGEST_HEADER = 1 << 20

KINDS = (
    *("int64", "bool", "date32[day]", "time32[s]", "timestamp[s]", "timestamp[ns]"),
    *("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]", "double", "string"),
)
"""The types of columns, by pyarrow's names; a column has the first that fits all of its cells, as in pyarrow."""


def kind_at(place: int) -> DataType:
    """Return the type at a place of `KINDS`."""
    pa, name = pyarrow(), KINDS[place]
    zoned = re.fullmatch(r"timestamp\[(.*), tz=UTC\]", name)
    return pa.timestamp(zoned[1], "UTC") if zoned else pa.type_for_alias(name)


_FEW = 64
"""Cells that are tried first: each that does not fit costs pyarrow a microsecond."""


class Misfit(Exception):
    """A cell does not fit the type that was inferred for its column, which is the argument."""


class _Content(io.RawIOBase):
    """The content of a file, decompressed, and some bytes after it."""

    def __init__(self, path: str, end: bytes) -> None:
        super().__init__()
        self._file = LocalBlob(path)
        self._read = content_of(self._file).take
        self._end = end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._read(size)
        if not piece:
            piece, self._end = self._end, b""
        return piece

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True)
class Parser:
    """How one file is parsed."""

    file: File
    columns: tuple[str, ...]
    """Names of all columns."""
    has_header: bool
    delimiter: str

    @classmethod
    def of(cls, file: File, columns: tuple[str, ...] | None, delimiter: str) -> Parser:
        """Return the parser of a file; its first row names the columns if they are None."""
        if columns is not None:
            return cls(file, columns, False, delimiter)
        with _Content(file.path, b"") as content:
            start = content.read(1 << 12)
        if start[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) or b"\0" in start.partition(b"\n")[0]:
            raise CorruptSource(
                f"{file.path!r}: the header contains zero bytes. The file is damaged, or in UTF-16: convert it, for "
                'example with `iconv -f UTF-16 -t UTF-8`, or write it as "CSV UTF-8" from Excel.'
            )
        if not start:
            raise CorruptSource(f"{file.path!r} is empty: it does not even have a header.")
        parser = cls(file, (), True, delimiter)
        try:
            with _Content(file.path, b"") as content:
                names = parser._open(content, min(_LONGEST_HEADER, LONGEST_ROW)).schema.names
        except pyarrow().ArrowInvalid as exc:
            parser._fail(exc, 0, {})
        return cls(file, tuple(names), True, delimiter)

    # Any: a reader of pyarrow's.
    def _open(
        self, content: object, block: int, kinds: Mapping[str, DataType] | None = None, include: list[str] | None = None
    ) -> Any:
        csv = pyarrow("pyarrow.csv")
        # Not read_csv, which changes signal handlers and leaves a pipe open. With one thread, errors have row numbers.
        return csv.open_csv(
            content,
            csv.ReadOptions(
                use_threads=False, column_names=None if self.has_header else self.columns, block_size=block
            ),
            csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            csv.ConvertOptions(include_columns=include, column_types=kinds),
        )

    def batches(self, kinds: Mapping[str, DataType], given: Mapping[str, DataType]) -> Iterator[RecordBatch]:
        """Yield the rows: columns of these types.

        A quote that is not closed would end with the file, in silence. So a row of empty cells is parsed after the last
        one: such a quote takes it in, and then the last cell is not empty.

        Raises:
            Misfit: a cell does not fit a type that is not among those `given` by the user.
            CorruptSource: a row has another number of cells, a cell does not fit a given type, or it is not UTF-8.
        """
        pa, last = pyarrow(), self.columns[-1]
        parsed = {**kinds, last: kinds.get(last, pa.binary())}
        end = f'\n""{self.delimiter * (len(self.columns) - 1)}\n'.encode()
        count, held = 0, None
        with _Content(self.file.path, end) as content:
            try:
                for batch in self._open(content, LONGEST_ROW, parsed, list(parsed)):
                    if held is not None and held.num_rows:
                        yield held.select(list(kinds))
                    held, count = batch, count + batch.num_rows
            except pa.ArrowInvalid as exc:
                self._fail(exc, count, given)
        if held is None or held.column(last)[-1].as_py() not in (None, "", b""):
            raise CorruptSource(
                f"{self.file.path!r}: a quote that is opened in row {count + self.has_header} is never closed."
            )
        yield held.select(list(kinds)).slice(0, held.num_rows - 1)

    def _fail(self, exc: Exception, count: int, given: Mapping[str, DataType]) -> NoReturn:
        """Raise the error for one of pyarrow's, after so many rows."""
        text = words(exc).rstrip(".")
        row, column = re.search(r"Row #(\d+): ", text), re.search(r"In CSV column #(\d+): ", text)
        where = f"{self.file.path!r}, row {int(row[1]) if row else count + 1 + self.has_header}"
        why = text[max(match.end() for match in (row, column) if match) if row or column else 0 :][:500]
        if "straddling" in why:
            raise CorruptSource(
                f"{where} or later: a quote is never closed, or a row has more than {LONGEST_ROW >> 20} MiB."
            ) from exc
        if column is None:
            raise CorruptSource(
                f"{where}: {why}. Cells that contain delimiters or line ends need quotes. Correct the row, or set "
                "delimiter= to the character that separates cells."
            ) from exc
        name = self.columns[int(column[1])] if int(column[1]) < len(self.columns) else column[1]
        if "UTF8" in why:
            raise CorruptSource(
                f"{where}, column {name!r}: the cell is not in UTF-8; its encoding may be Latin-1. Convert the file "
                f"(`iconv -f LATIN1 -t UTF-8`), or read the column as bytes: types={{{name!r}: 'binary'}}."
            ) from exc
        if name not in given:
            raise Misfit(name) from exc
        raise CorruptSource(
            f"{where}, column {name!r}: {why}. Correct the cell, or give the column another type, such as "
            f"types={{{name!r}: 'string'}}."
        ) from exc

    def inferred(self, names: list[str]) -> dict[str, int]:
        """Return places in `KINDS` for columns, -1 for those without values.

        Each fits the cells that come after the first ones it fits; whether it fits all is seen when they are parsed.
        """
        pa, compute = pyarrow(), pyarrow("pyarrow.compute")
        markers = pa.array(pyarrow("pyarrow.csv").ConvertOptions().null_values)
        places = dict.fromkeys(names, -1)
        for batch in self.batches(dict.fromkeys(names, pa.string()), {}):
            for name in names:
                if places[name] < len(KINDS) - 1:
                    column = batch.column(name)
                    cells = compute.if_else(compute.is_in(column, value_set=markers), None, column)
                    places[name] = _place(cells, places[name])
        return places


def _place(cells: Array, place: int) -> int:
    """Return the first place in `KINDS`, from a place on, of a type that fits cells."""
    if cells.null_count == len(cells):
        return place
    trimmed = pyarrow("pyarrow.compute").utf8_trim_whitespace(cells).drop_null()
    place = max(place, 0)
    for some in (trimmed[:_FEW], trimmed):
        while place < len(KINDS) - 1 and not _fits(some, kind_at(place)):
            place += 1
    return place


def _fits(cells: Array, kind: DataType) -> bool:
    pa = pyarrow()
    if pa.types.is_time(kind):  # which strings cannot be cast to
        cells = pyarrow("pyarrow.compute").binary_join_element_wise("2000-01-01", cells, " ")
        kind = pa.timestamp("s")
    try:
        cells.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


DELIMITERS = ",;\t"


def delimiter_of(line: str) -> str:
    """Guess the delimiter of a line. Excel writes semicolons where the decimal separator is a comma.

    Example:
        >>> delimiter_of("a;b;c"), delimiter_of("name")
        (';', ',')
    """
    return max(DELIMITERS, key=line.count)
