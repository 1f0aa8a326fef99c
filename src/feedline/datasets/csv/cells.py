"""What the cells of columns are: their types, and errors that say where a cell is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from feedline._optional import require
from feedline.datasets.paths import File
from feedline.errors import BadOption, CorruptSource
from feedline.failures import words

_TIMES = (("date32[day]", "timestamp[s]", "timestamp[ns]"), ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"))
"""Each can hold what those before it in its row can, if nanoseconds can count them."""

# Any, throughout: pyarrow has no types to check against.


def _pyarrow() -> Any:
    return require("pyarrow", extra="parquet", purpose="CSVDataset")


def wider(kind: Any, other: Any) -> Any:
    """Return the type for a column that has cells of two, as pyarrow finds it out for a whole file.

    Bools and times are to be tried: not every integer is a bool, and not every date can be counted in nanoseconds.
    """
    pa = _pyarrow()
    if kind == other or pa.types.is_null(kind):
        return other
    if pa.types.is_null(other):
        return kind
    if {kind, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if {kind, other} == {pa.int64(), pa.bool_()}:
        return pa.bool_()
    for times in _TIMES:
        if str(kind) in times and str(other) in times:
            return max(kind, other, key=lambda one: times.index(str(one)))
    return pa.string()


@contextmanager
def named_rows(file: File, columns: tuple[str, ...], first: int) -> Iterator[None]:
    """Turn errors of pyarrow about rows into such that name the file and the row.

    Args:
        file: which is parsed.
        columns: of the file.
        first: the number of the first row that is parsed.
    """
    pa = _pyarrow()
    try:
        yield
    except pa.ArrowInvalid as exc:
        text = words(exc).rstrip(".")
        row = re.search(r"Row #(\d+): ", text)
        column = re.search(r"In CSV column #(\d+): ", text)
        where = f"{file.path!r}, row {first + int(row[1]) - 1 if row else first}"
        why = text[max(match.end() for match in (row, column) if match) if row or column else 0 :]
        if column is None:
            raise CorruptSource(
                f"{where}: {why}. Delimiters and line ends inside of a cell need quotes around it. Correct the row, or "
                "say with delimiter= what separates cells."
            ) from exc
        name = columns[int(column[1])] if int(column[1]) < len(columns) else column[1]
        if "UTF8" in why:
            raise CorruptSource(
                f"{where}, column {name!r}: the cell is not in UTF-8, but in another encoding, such as Latin-1. "
                "Convert the file (`iconv -f LATIN1 -t UTF-8`), or read the column as bytes: "
                f"types={{{name!r}: 'binary'}}."
            ) from exc
        raise CorruptSource(
            f"{where}, column {name!r}: {why}. Correct the cell, or give the column another type, such as "
            f"types={{{name!r}: 'string'}}."
        ) from exc


def checked_types(types: Any) -> dict[str, Any]:
    """Return the types that were given as pyarrow's.

    Raises:
        BadOption: one of them is none.
    """
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise BadOption(f"types={types!r} is not a dict from columns to types, such as {{'x': 'float32'}}.")
    pa, found = _pyarrow(), {}
    for name, kind in types.items():
        try:
            if isinstance(kind, pa.DataType):
                found[name] = kind
            elif isinstance(kind, str):
                found[name] = pa.type_for_alias(kind)
            else:
                found[name] = pa.string() if kind is str else pa.from_numpy_dtype(kind)
        except (ValueError, TypeError, AttributeError, NotImplementedError, pa.ArrowException) as exc:
            raise BadOption(
                f"types={{{name!r}: {kind!r}}} is no type of pyarrow. Give one by its name, such as 'float32', "
                "'int64', 'string', 'bool' or 'timestamp[s]'."
            ) from exc
    return found


def checked_columns(columns: Any) -> tuple[str, ...] | None:
    """Return the names of columns that were given.

    Raises:
        BadOption: they are none, or one comes twice.
    """
    if columns is None:
        return None
    names = () if isinstance(columns, (str, bytes)) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise BadOption(f"columns={columns!r} is not a list of names, each of which occurs once.")
    return names
