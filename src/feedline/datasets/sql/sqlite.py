"""SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from feedline.datasets.sql.database import Database, Rows, extended, in_groups
from feedline.datasets.sql.statement import Parameters
from feedline.errors import CorruptSource, SourceError

_MOST_KEYS = 900
"""Keys in one statement."""

_MOST_VALUES = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""What SQLite takes in one statement, those of the user's query included."""

_WAIT_S = 30.0
"""How long to wait for somebody who writes."""


class Sqlite(Database):
    """SQLite, through the standard library."""

    def check(self) -> None:
        assert self.address.path

    def connect(self) -> sqlite3.Connection:
        path = os.path.abspath(self.address.path)
        if not os.path.exists(path):
            raise SourceError(f"There is no file {path!r}, which {self.address!r} names.")
        _check_size(path)
        # Any thread may close it: the one it belongs to may have ended.
        return sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S, check_same_thread=False, isolation_level=None
        )

    def close(self, connection: Any) -> None:
        connection.close()

    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        cursor = connection.execute(statement, parameters or ())
        try:
            return [(column[0], "") for column in cursor.description]
        finally:
            cursor.close()

    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        cursor = connection.execute(statement, parameters or ())
        try:
            found: Rows = cursor.fetchall()
            return found
        finally:
            cursor.close()

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        cursor = connection.execute(statement, parameters or ())  # a statement sees the database as it began
        try:
            while rows := cursor.fetchmany(size):
                yield rows
        finally:
            cursor.close()

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        found = []
        for group in in_groups(keys, max(1, min(_MOST_KEYS, _MOST_VALUES - len(parameters or ())))):
            marks, values = extended(parameters, group, ":")
            found.append((f"{column} IN ({', '.join(marks)})", values))
        return found

    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        (mark,), values = extended(parameters, [key], ":")
        return f"{column} > {mark}", values

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)  # the last one of names in a damaged schema

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        return False

    def is_corrupt(self, exc: Exception) -> bool:
        return isinstance(exc, UnicodeDecodeError) or any(
            words in str(exc) for words in ("malformed", "not a database", "disk I/O error", "Could not decode")
        )


def _check_size(path: str) -> None:
    """Make sure that a file has all its pages: SQLite itself may take those that are missing for empty ones.

    Raises:
        CorruptSource: it has not.
    """
    if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
        return  # newer pages are in there
    with open(path, "rb") as file:
        header = file.read(100)
        size = file.seek(0, os.SEEK_END)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0") or header[24:28] != header[92:96]:
        return  # SQLite says itself that it is none; or an old version wrote it, which did not keep the number
    page = int.from_bytes(header[16:18], "big")
    whole = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < whole:
        raise CorruptSource(
            f"{path!r} is cut off: it has {size} bytes, but the database in it has {whole}. Restore it from a copy."
        )
