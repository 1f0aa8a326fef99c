"""What is in a file of SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.schema import Sample


@dataclass(frozen=True)
class _Table:
    name: str
    columns: tuple[tuple[str, str], ...]
    """Names and types."""
    keys: tuple[str, ...]
    """The columns of the primary key."""
    count: int
    has_rowid: bool

    @property
    def quoted(self) -> str:
        return '"' + self.name.replace('"', '""') + '"'


def look(path: Path) -> Contents:
    """Look into a database, which nothing is written to."""
    with _opened(path) as database:
        tables = _tables(database)
    largest = max(tables, key=lambda table: table.count, default=None)
    is_one = len(tables) == 1

    def take(wanted: int) -> list[Sample]:
        if largest is None:
            return []
        with _opened(path) as database:
            cursor = database.execute(f"SELECT * FROM {largest.quoted}")
            names = [one[0] for one in cursor.description]
            # Not by OFFSET, which reads all rows before it again for each sample.
            chosen = set(spread(min(largest.count, 10_000), wanted))
            rows = zip(range(10_000), cursor, strict=False)
            return [dict(zip(names, row, strict=True)) for number, row in rows if number in chosen]

    details: dict[str, object] = {"tables": {table.name: f"{table.count:,} rows" for table in tables} or "none"}
    if not is_one and largest is not None:
        details["samples are of"] = largest.name
    return Contents(
        path,
        "SQLite database",
        tables[0].count if is_one else None,
        path.stat().st_size,
        tuple(
            Field(name if is_one else f"{table.name}.{name}", kind, "primary key" if name in table.keys else "")
            for table in tables
            for name, kind in table.columns
        ),
        take,
        details,
        "" if largest is None else _text(path, largest),
    )


def _text(path: Path, table: _Table) -> str:
    """Return the expression that opens a table; "" if nothing single tells its rows apart."""
    place = str(path).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    address = f"sqlite:///{place}"
    if len(table.keys) == 1:
        return f"SQLDataset({address!r}, {f'SELECT * FROM {table.quoted}'!r}, key={table.keys[0]!r})"
    if table.has_rowid:
        return f"SQLDataset({address!r}, {f'SELECT rowid, * FROM {table.quoted}'!r}, key='rowid')"
    return ""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        yield database
    finally:
        database.close()


def _tables(database: sqlite3.Connection) -> list[_Table]:
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    )
    found = []
    for (name,) in database.execute(query).fetchall():
        columns = database.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
        table = _Table(
            name,
            tuple((column, kind.lower() or "any") for column, kind, _ in columns),
            tuple(column for column, _, key in columns if key),
            0,
            True,
        )
        (count,) = database.execute(f"SELECT count(*) FROM {table.quoted}").fetchone()
        found.append(_Table(name, table.columns, table.keys, count, _has_rowid(database, table)))
    return found


def _has_rowid(database: sqlite3.Connection, table: _Table) -> bool:
    try:
        database.execute(f"SELECT rowid FROM {table.quoted} LIMIT 1")
    except sqlite3.OperationalError:
        return False
    return True
