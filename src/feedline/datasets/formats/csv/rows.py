"""Row ends of a CSV file: splits it into parts of whole rows, each of which can be parsed by itself.

A line end inside a quoted cell does not end a row. A cell is quoted if it begins with a quote; a quote anywhere else in
an unquoted cell is an ordinary character. In well-formed files, every quote begins or ends a cell, or is one of a pair.
Then a line end is inside a cell if the number of quotes before it is odd, which is fast to count. Other files are
scanned cell by cell.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.parquet.values import pyarrow
from feedline.datasets.framework.paths import File
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words

_LF, _CR, _QUOTE = b'\n\r"'

LONGEST_ROW = 1 << 24
"""Maximum size of a row in bytes. A quote that is never closed would turn the rest of a large file into one row."""

DELIMITERS = ",;\t"


class Unclosed(ValueError):
    """A quote that is never closed. The only argument is the number of rows before it in the part."""


class UTF16(ValueError):
    """A file that begins with the byte order mark of UTF-16."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file that form whole rows."""

    start: int
    """Offset of the part in the file."""
    content: bytes
    ends: NDArray[np.int64]
    """Where each row ends in `content`. Empty lines are not rows."""


def parts(read: Callable[[int], bytes], delimiter: str, size: int) -> Iterator[Part]:
    r"""Split a file into parts of about `size` bytes.

    `read` returns up to the given number of bytes of the file, and none at its end. A part is larger only if a row is.

    Example:
        >>> import io
        >>> file = io.BytesIO(b'a,b\n1,"x\ny"\n2,z')
        >>> [part.content for part in parts(file.read, ",", 6)]
        [b'a,b\n', b'1,"x\ny"\n', b'2,z']
    """
    pending = read(len(BOM_UTF8))
    start, wanted = 0, size
    if pending == BOM_UTF8:  # not part of the first cell, which may begin with a quote
        start, pending = len(pending), b""
    if pending[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise UTF16
    while True:
        more = read(wanted)
        content = pending + more
        ends = row_ends(content, delimiter, is_last=not more)
        if len(ends):
            cut = int(ends[-1])
            yield Part(start, content[:cut], ends)
            start, pending, wanted = start + cut, content[cut:], size
        else:  # double the size each time, because all of it is scanned again
            pending, wanted = content, max(size, len(content))
            if len(pending) > LONGEST_ROW:
                raise Unclosed(0)
        if not more:
            return


def row_ends(content: bytes, delimiter: str, *, is_last: bool) -> NDArray[np.int64]:
    """Return where rows end in bytes that begin with a row; the last row counts only if it is complete."""
    codes = np.frombuffer(content, np.uint8)
    breaks = np.flatnonzero(codes == _LF)
    if content.count(b"\r") > content.count(b"\r\n"):
        alone = np.append((codes[:-1] == _CR) & (codes[1:] != _LF), is_last and codes[-1] == _CR)
        breaks = np.union1d(breaks, np.flatnonzero(alone))
    if b'"' in content:
        inside, is_open = _quoted(content, codes, breaks, delimiter)
        breaks = breaks[~inside]
        if is_open and is_last:
            raise Unclosed(len(breaks))
    if is_last and len(codes) and (not len(breaks) or breaks[-1] < len(codes) - 1):
        breaks = np.append(breaks, len(codes) - 1)
    ends = breaks + 1
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    is_row = (codes[starts] != _LF) & (codes[starts] != _CR)  # not an empty line
    rows: NDArray[np.int64] = ends[is_row].astype(np.int64)
    return rows


def _quoted(
    content: bytes, codes: NDArray[np.uint8], breaks: NDArray[np.int64], delimiter: str
) -> tuple[NDArray[np.bool_], bool]:
    """Return which line ends are inside quoted cells, and whether the last quoted cell is still open."""
    quotes = np.flatnonzero(codes == _QUOTE)
    around = np.zeros(256, np.bool_)
    around[[ord(delimiter), _LF, _CR, _QUOTE]] = True
    padded = np.frombuffer(b"\n%b\n" % content, np.uint8)  # the beginning and the end count as line ends
    if around[padded[quotes[::2]]].all() and around[padded[quotes[1::2] + 2]].all():
        return np.searchsorted(quotes, breaks) % 2 == 1, len(quotes) % 2 == 1
    pattern = rb'(?<![^%b\r\n])"[^"]*(?:""[^"]*)*("|\Z)' % re.escape(delimiter.encode())
    cells = list(re.finditer(pattern, content))
    firsts, lasts = [cell.start() for cell in cells], [cell.end() for cell in cells]
    inside = np.searchsorted(firsts, breaks) > np.searchsorted(lasts, breaks, side="right")
    return inside, bool(cells) and not cells[-1][1]


def delimiter_of(line: str) -> str:
    """Guess the delimiter of a line. Excel writes semicolons where the decimal separator is a comma.

    Example:
        >>> delimiter_of("a;b;c"), delimiter_of("name")
        (';', ',')
    """
    return max(DELIMITERS, key=line.count)


_TIMES = (("date32[day]", "timestamp[s]", "timestamp[ns]"), ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"))
"""Each type can hold the values of those before it in its tuple, as long as they fit into nanoseconds."""


def wider(kind: object, other: object) -> object:
    """Return the type for a column with cells of two types, the same that pyarrow infers for a whole file.

    Bools and times have to be verified: not every integer is a bool, and not every date fits into nanoseconds.
    """
    pa = pyarrow()
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
    """Convert pyarrow's errors about rows into CorruptSource errors that name the file and the row."""
    pa = pyarrow()
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
                f"{where}: {why}. Cells that contain delimiters or line ends need quotes. Correct the row, or set "
                "delimiter= to the character that separates cells."
            ) from exc
        name = columns[int(column[1])] if int(column[1]) < len(columns) else column[1]
        if "UTF8" in why:
            raise CorruptSource(
                f"{where}, column {name!r}: the cell is not in UTF-8; its encoding may be Latin-1. "
                "Convert the file (`iconv -f LATIN1 -t UTF-8`), or read the column as bytes: "
                f"types={{{name!r}: 'binary'}}."
            ) from exc
        raise CorruptSource(
            f"{where}, column {name!r}: {why}. Correct the cell, or give the column another type, such as "
            f"types={{{name!r}: 'string'}}."
        ) from exc


def checked_types(types: object) -> dict[str, object]:
    """Convert the given types to pyarrow's. Raises BadOption if one of them is not a type."""
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise BadOption(f"types={types!r} is not a dict from columns to types, such as {{'x': 'float32'}}.")
    pa, found = pyarrow(), {}
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
                f"types={{{name!r}: {kind!r}}} is not a pyarrow type. Pass its name, such as 'float32', 'int64', "
                "'string', 'bool' or 'timestamp[s]'."
            ) from exc
    return found


def checked_columns(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the given column names as a tuple. Raises BadOption if there are none, or one occurs twice."""
    if columns is None:
        return None
    names = () if isinstance(columns, (str, bytes)) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise BadOption(f"columns={columns!r} is not a list of distinct names.")
    return names
