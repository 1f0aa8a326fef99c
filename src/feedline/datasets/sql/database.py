"""The kinds of databases: how each is connected to, asked and read; and SQL around the user's query.

Values never become part of a query's text; names are quoted.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any
from urllib.parse import quote

from feedline.datasets.sql.address import Address
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.optional import require

# Any, throughout: connections, parameters, values and rows are the driver's.

Parameters = Sequence[Any] | Mapping[str, Any] | None
"""What stands for the placeholders of a query."""

Rows = list[tuple[Any, ...]]

_MOST_VALUES = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""What SQLite takes in one statement, those of the user's query included."""

_WAIT_S = 30.0
"""How long SQLite waits for somebody who writes."""


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def checked_query(query: Any) -> str:
    """Return a query that can stand in another one; BadOption if it is no text, or empty."""
    text = query.strip().rstrip(";").rstrip() if isinstance(query, str) else ""
    if not text:
        raise BadOption(f"query={query!r} is not a SELECT statement.")
    return text


def checked_parameters(parameters: Any) -> Parameters:
    """Return parameters as drivers take them; BadOption if they are neither a sequence nor a mapping."""
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return dict(parameters)
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Sequence):
        raise BadOption(
            "parameters= is neither a list of values, for placeholders without names, nor a dict, for those with names."
        )
    return list(parameters)


def select(
    columns: Sequence[str],
    query: str,
    *,
    more: Sequence[str] = (),
    where: str = "",
    order: str = "",
    limit: int | None = None,
) -> str:
    """Return a statement that selects columns of a query's result, and more expressions."""
    listed = ", ".join([*(f"feedline_q.{quoted(column)}" for column in columns), *more]) if columns else "*"
    # The query ends with a line of its own: it may end with a comment.
    text = f"SELECT {listed} FROM (\n{query}\n) AS feedline_q"
    if where:
        text += f" WHERE {where}"
    if order:
        text += f" ORDER BY feedline_q.{quoted(order)}"
    return text if limit is None else f"{text} LIMIT {limit:d}"


class Database(ABC):
    """A kind of database.

    Instances have no state but the address, so that they can be pickled; workers open connections of their own. A
    connection belongs to one thread, and can only read.
    """

    marks = ("?", ":{}")
    """Placeholders: without a name, and with one."""

    def __init__(self, address: Address, *, external: bool = False) -> None:
        self.address = address
        self.external = external
        """True if a query or a view may read what is not in the database."""

    @abstractmethod
    def check(self) -> None:
        """Make sure that the driver is installed and the address makes sense; connects to nothing."""

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection that cannot write."""

    def close(self, connection: Any) -> None:
        """Close a connection; it may be broken."""
        connection.close()

    def _asked(self, connection: Any, statement: str, parameters: Parameters) -> AbstractContextManager[Any]:
        """Run a statement, and give the cursor to its result. Never without parameters: `%%` stands for `%` then."""
        return closing(connection.execute(statement, parameters or ()))

    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        """Return the names of a result's columns, and their types as far as they are known."""
        with self._asked(connection, statement, parameters) as cursor:
            return [(column[0], self._type(column)) for column in cursor.description]

    def _type(self, column: Any) -> str:
        return ""

    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        """Return all rows of a result."""
        with self._asked(connection, statement, parameters) as cursor:
            found: Rows = cursor.fetchall()
            return found

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        """Yield the rows of a result, `size` at a time, all as they were when it began: so a statement sees them."""
        with self._asked(connection, statement, parameters) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    @abstractmethod
    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        """Return conditions for rows with these keys, and parameters with the keys in them.

        One, unless the database takes fewer values at a time. `column` is the key, quoted.
        """

    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        """Return a condition for rows whose key comes after this one, and parameters with the key in them."""
        (mark,), values = self.extended(parameters, [key])
        return f"{column} > {mark}", values

    def extended(
        self, parameters: Parameters, values: Sequence[Any], *, first: bool = False
    ) -> tuple[list[str], Parameters]:
        """Add values to those of the user's query; return their placeholders, and all parameters.

        They stand behind all others in the statement, or before them if they are the `first`.
        """
        unnamed, with_name = self.marks
        if isinstance(parameters, dict):
            own = {f"feedline_{'first' if first else 'key'}_{number}": value for number, value in enumerate(values)}
            return [with_name.format(name) for name in own], {**parameters, **own}
        given = parameters or ()
        return [unnamed] * len(values), [*values, *given] if first else [*given, *values]

    def query(self, text: str, parameters: Parameters) -> str:
        """Return the user's query as it is to be given to the driver."""
        return text

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        """True if the connection broke, so that another one may do."""
        return False

    def is_corrupt(self, exc: Exception) -> bool:
        """True if the database is damaged."""
        return False

    def advice(self, exc: Exception) -> str:
        """Return what to do about a query that was refused or failed."""
        return "Check query= and parameters=."


class _Embedded(Database):
    """A database in a file, whose driver takes keys as a list of placeholders."""

    most_keys = 0
    """Keys in one statement."""
    damage: tuple[str, ...] = ()
    """Words by which the driver says that the file is damaged."""

    def check(self) -> None:
        assert self.address.path

    def _file(self) -> str:
        path = os.path.abspath(self.address.path)
        if not os.path.exists(path):
            raise SourceError(f"There is no file {path!r}, which {self.address!r} names.")
        return path

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        found = []
        most = max(1, min(self.most_keys, _MOST_VALUES - len(parameters or ())))
        for first in range(0, len(keys), most):
            marks, values = self.extended(parameters, keys[first : first + most])
            found.append((f"{column} IN ({', '.join(marks)})", values))
        return found

    def is_corrupt(self, exc: Exception) -> bool:
        return any(words in str(exc) for words in self.damage)


class Sqlite(_Embedded):
    """SQLite, through the standard library."""

    most_keys = 900
    damage = ("malformed", "not a database", "disk I/O error", "Could not decode")

    def connect(self) -> sqlite3.Connection:
        path = self._file()
        _check_size(path)
        # Any thread may close it: the one it belongs to may have ended.
        return sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S, check_same_thread=False, isolation_level=None
        )

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)  # the last one of names in a damaged schema

    def is_corrupt(self, exc: Exception) -> bool:
        return isinstance(exc, UnicodeDecodeError) or super().is_corrupt(exc)


def _check_size(path: str) -> None:
    """Refuse a file that lacks pages: SQLite itself may take those that are missing for empty ones."""
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


class DuckDB(_Embedded):
    """DuckDB, read-only and on one thread: several workers do not get in each other's way, and survive a fork.

    Views in a database can read any file of this machine and any address, so that is off unless it is asked for.
    """

    most_keys = 10_000  # a guess: there is no limit, but a statement has to be read, too
    marks = ("?", "${}")
    damage = ("not a valid DuckDB", "orrupt", "checksum", "could not read")

    def check(self) -> None:
        super().check()
        self._driver()

    def _driver(self) -> Any:
        return require("duckdb", extra="sql", purpose="SQLDataset of a DuckDB database")

    def connect(self) -> Any:
        config = {"threads": 1, "enable_external_access": "true" if self.external else "false"}
        return self._driver().connect(self._file(), read_only=True, config=config).cursor()

    def _asked(self, connection: Any, statement: str, parameters: Parameters) -> AbstractContextManager[Any]:
        return nullcontext(connection.execute(statement, parameters))  # it is the connection, which is not to be closed

    def _type(self, column: Any) -> str:
        return str(column[1]).lower()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def advice(self, exc: Exception) -> str:
        if not isinstance(exc, self._driver().PermissionException):
            return super().advice(exc)
        return (
            "The query, or a view in the database, reads something that is not in the database. If you trust both, "
            "give external=True."
        )


class Postgres(Database):
    """PostgreSQL, through psycopg 3."""

    marks = ("%s", "%({})s")

    def check(self) -> None:
        conninfo = require("psycopg.conninfo", extra="sql", purpose="SQLDataset of a PostgreSQL database")
        try:
            conninfo.conninfo_to_dict(self.address.text)
            is_clear = self.address.is_clear
        except self.errors:  # its message may quote a part of the password
            is_clear = False
        if not is_clear:
            raise BadOption(
                f"The connection string {self.address!r} cannot be understood. It has to be of the form "
                "postgresql://user:password@host:port/database?option=value, with options that PostgreSQL knows. In a "
                "password, write %40 for @, %3A for : and %2F for /."
            )

    def _driver(self) -> Any:
        return require("psycopg", extra="sql", purpose="SQLDataset of a PostgreSQL database")

    def connect(self) -> Any:
        connection = self._driver().connect(self.address.text, autocommit=True, application_name="feedline")
        try:
            connection.execute("SET default_transaction_read_only = on")
        except BaseException:
            connection.close()
            raise
        return connection

    def query(self, text: str, parameters: Parameters) -> str:
        # With parameters of our own the driver looks for placeholders, also in a query that was not meant to have any.
        return text.replace("%", "%%") if parameters is None else text

    def _type(self, column: Any) -> str:
        return str(column.type_display)

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            with connection.cursor(name="feedline") as cursor:
                cursor.execute(statement, parameters or ())
                while rows := cursor.fetchmany(size):
                    yield rows
        finally:
            if not connection.closed and not connection.broken:
                connection.execute("ROLLBACK")

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        (mark,), values = self.extended(parameters, [keys])
        return [(f"{column} = ANY({mark})", values)]

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        if connection is None:
            return isinstance(exc, self._driver().OperationalError)
        return bool(connection.closed or connection.broken)
