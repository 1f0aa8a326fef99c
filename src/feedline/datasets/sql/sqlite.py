"""SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

from feedline.datasets.sql.database import Embedded, Rows
from feedline.datasets.sql.statement import Parameters
from feedline.errors import CorruptSource

_MOST_VALUES = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""What SQLite takes in one statement, those of the user's query included."""

_WAIT_S = 30.0
"""How long to wait for somebody who writes."""


class Sqlite(Embedded):
    """SQLite, through the standard library."""

    most_keys = 900
    mark = ":"

    def connect(self) -> sqlite3.Connection:
        path = self._file()
        _check_size(path)
        # Any thread may close it: the one it belongs to may have ended.
        return sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S, check_same_thread=False, isolation_level=None
        )

    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        with closing(connection.execute(statement, parameters or ())) as cursor:
            return [(column[0], "") for column in cursor.description]

    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        with closing(connection.execute(statement, parameters or ())) as cursor:
            found: Rows = cursor.fetchall()
            return found

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        # A statement sees the database as it began.
        with closing(connection.execute(statement, parameters or ())) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    def _most_keys(self, parameters: Parameters) -> int:
        return max(1, min(self.most_keys, _MOST_VALUES - len(parameters or ())))

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)  # the last one of names in a damaged schema

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
