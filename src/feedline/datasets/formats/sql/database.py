"""The supported databases, how to connect to and query each, and what their drivers raise."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from types import ModuleType
from typing import Any
from urllib.parse import quote

from feedline.datasets.formats.sql.address import Address
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.optional import require

Parameters = Sequence[object] | Mapping[str, object] | None
"""Values for the placeholders of a query."""

Connection = Any
"""A connection of a driver. Any: drivers share no class."""

Rows = list[tuple[Any, ...]]
"""Any: values are what the driver makes of them."""

_MOST_VALUES = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""Maximum number of values that SQLite accepts in one statement, including those of the user's query."""

_WAIT_S = 30.0
"""How long SQLite waits for a writer to release its lock."""


class Database(ABC):
    """A kind of database.

    The address and the options are the only state, so instances can be pickled; workers open their own connections. A
    connection belongs to one thread, and can only read.
    """

    marks = ("?", ":{}")
    """Placeholders: unnamed, and named."""

    def __init__(self, address: Address, *, external: bool = False) -> None:
        self.address = address
        self.external = external
        """True if a query or a view may read data outside the database."""

    @abstractmethod
    def check(self) -> None:
        """Check that the driver is installed and the address is valid, without connecting."""

    @abstractmethod
    def connect(self) -> Connection:
        """Open a read-only connection."""

    # Any, here and below: a cursor of the driver, and its description of a column.
    def _execute(self, connection: Connection, statement: str, parameters: Parameters) -> AbstractContextManager[Any]:
        """Run a statement and return its cursor as a context. Always with parameters: only then is `%%` read as `%`."""
        return closing(connection.execute(statement, parameters or ()))

    def describe(self, connection: Connection, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        """Return the names of a result's columns, and their types where known."""
        with self._execute(connection, statement, parameters) as cursor:
            return [(column[0], self._type(column)) for column in cursor.description]

    def _type(self, column: Any) -> str:
        return ""

    def rows(self, connection: Connection, statement: str, parameters: Parameters) -> Rows:
        """Return all rows of a result."""
        with self._execute(connection, statement, parameters) as cursor:
            return list(cursor.fetchall())

    def stream(self, connection: Connection, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        """Yield the rows of a result, `size` at a time. One statement reads one snapshot, as of its start."""
        with self._execute(connection, statement, parameters) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    @abstractmethod
    def with_keys(self, keys: list[object], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        """Return conditions for rows with these keys, and parameters that include the keys.

        One condition, unless the database takes fewer values at a time. `column` is the quoted name of the key.
        """

    def extended(
        self, parameters: Parameters, values: Sequence[object], *, first: bool = False
    ) -> tuple[list[str], Parameters]:
        """Add values to the parameters of the user's query. Return their placeholders and all parameters.

        In the statement, the new placeholders come after all others, or before them with `first`.
        """
        unnamed, with_name = self.marks
        if isinstance(parameters, dict):
            own = {f"feedline_{'first' if first else 'key'}_{number}": value for number, value in enumerate(values)}
            return [with_name.format(name) for name in own], {**parameters, **own}
        given = parameters or ()
        return [unnamed] * len(values), [*values, *given] if first else [*given, *values]

    def query(self, text: str, parameters: Parameters) -> str:
        """Return the user's query in the form that the driver needs."""
        return text

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the driver raises."""

    def is_lost(self, connection: Connection, exc: Exception) -> bool:
        """True if the connection broke, so a new one may work."""
        return False

    def is_corrupt(self, exc: Exception) -> bool:
        """True if the database is damaged."""
        return False

    def advice(self, exc: Exception) -> str:
        """Return advice for a query that was refused or failed."""
        return "Check query= and parameters=."


class _Embedded(Database):
    """A database in a file, whose driver takes keys as a list of placeholders."""

    most_keys = 0
    """Maximum number of keys in one statement."""
    damage: tuple[str, ...] = ()
    """Fragments of the driver's messages for a damaged file."""

    def check(self) -> None:
        assert self.address.path

    def _file(self) -> str:
        path = os.path.abspath(self.address.path)
        if not os.path.exists(path):
            raise SourceError(f"There is no file {path!r}, the database of {self.address!r}.")
        return path

    def with_keys(self, keys: list[object], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        found = []
        most = max(1, min(self.most_keys, _MOST_VALUES - len(parameters or ())))
        for first in range(0, len(keys), most):
            marks, values = self.extended(parameters, keys[first : first + most])
            found.append((f"{column} IN ({', '.join(marks)})", values))
        return found

    def is_corrupt(self, exc: Exception) -> bool:
        # Names in a damaged schema are not UTF-8.
        return isinstance(exc, UnicodeDecodeError) or any(words in str(exc) for words in self.damage)


class Sqlite(_Embedded):
    """SQLite, through the standard library."""

    most_keys = 900
    damage = ("malformed", "not a database", "disk I/O error", "Could not decode")
    errors = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)

    def connect(self) -> Connection:
        path = self._file()
        _check_size(path)
        # Every thread may close it, since the thread that owns it may have ended.
        return sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S, check_same_thread=False, isolation_level=None
        )


def _check_size(path: str) -> None:
    """Raise CorruptSource if the file lacks pages, which SQLite itself may treat as empty."""
    if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
        return  # it has newer pages
    with open(path, "rb") as file:
        header = file.read(100)
        size = file.seek(0, os.SEEK_END)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0") or header[24:28] != header[92:96]:
        return  # not a database, which SQLite reports; or from an old version that did not maintain the count
    page = int.from_bytes(header[16:18], "big")
    whole = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < whole:
        raise CorruptSource(f"{path!r} is truncated: it has {size} of {whole} bytes. Restore it from a backup.")


class DuckDB(_Embedded):
    """DuckDB, read-only and with one thread, so that workers do not compete for cores and survive a fork.

    Views in a database can read any file of this machine and any URL, so that is disabled unless `external` is set.
    """

    most_keys = 10_000  # a guess: there is no limit, but parsing the statement also takes time
    marks = ("?", "${}")
    damage = ("not a valid DuckDB", "orrupt", "checksum", "could not read")

    def check(self) -> None:
        super().check()
        self._driver()

    def _driver(self) -> ModuleType:
        return require("duckdb", extra="sql", purpose="SQLDataset of a DuckDB database")

    def connect(self) -> Connection:
        config = {"threads": 1, "enable_external_access": "true" if self.external else "false"}
        return self._driver().connect(self._file(), read_only=True, config=config).cursor()

    def _execute(self, connection: Connection, statement: str, parameters: Parameters) -> AbstractContextManager[Any]:
        return nullcontext(connection.execute(statement, parameters))  # this is the connection, which must stay open

    def _type(self, column: Any) -> str:
        return str(column[1]).lower()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def advice(self, exc: Exception) -> str:
        if not isinstance(exc, self._driver().PermissionException):
            return super().advice(exc)
        return (
            "The query, or a view in the database, reads data that is not in the database. If you trust both, pass "
            "external=True."
        )


class Postgres(Database):
    """PostgreSQL, through psycopg 3."""

    marks = ("%s", "%({})s")

    def check(self) -> None:
        conninfo = require("psycopg.conninfo", extra="sql", purpose="SQLDataset of a PostgreSQL database")
        try:
            conninfo.conninfo_to_dict(self.address.text)
            is_clear = self.address.is_clear
        except self.errors:  # the driver's message may quote a part of the password
            is_clear = False
        if not is_clear:
            raise BadOption(
                f"The connection string {self.address!r} cannot be parsed. Write it as "
                "postgresql://user:password@host:port/database?option=value, with options that PostgreSQL knows. In a "
                "password, write %40 for @, %3A for : and %2F for /."
            )

    def _driver(self) -> ModuleType:
        return require("psycopg", extra="sql", purpose="SQLDataset of a PostgreSQL database")

    def connect(self) -> Connection:
        connection = self._driver().connect(self.address.text, autocommit=True, application_name="feedline")
        try:
            connection.execute("SET default_transaction_read_only = on")
        except BaseException:
            connection.close()
            raise
        return connection

    def query(self, text: str, parameters: Parameters) -> str:
        # With our own parameters, the driver looks for placeholders, even in a query that was not meant to have any.
        return text.replace("%", "%%") if parameters is None else text

    def _type(self, column: Any) -> str:
        return str(column.type_display)

    def stream(self, connection: Connection, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            with connection.cursor(name="feedline") as cursor:
                cursor.execute(statement, parameters or ())
                while rows := cursor.fetchmany(size):
                    yield rows
        finally:
            if not connection.closed and not connection.broken:
                connection.execute("ROLLBACK")

    def with_keys(self, keys: list[object], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        (mark,), values = self.extended(parameters, [keys])
        return [(f"{column} = ANY({mark})", values)]

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def is_lost(self, connection: Connection, exc: Exception) -> bool:
        if connection is None:
            return isinstance(exc, self._driver().OperationalError)
        return bool(connection.closed or connection.broken)


_DATABASES: dict[str, type[Database]] = {
    "sqlite": Sqlite,
    "duckdb": DuckDB,
    "postgresql": Postgres,
    "postgres": Postgres,
}


def database_at(address: Address, *, external: bool) -> Database:
    """Return the database at an address. Raises BadOption: the address or the option does not fit; MissingExtra."""
    kind = _DATABASES[address.scheme]
    if external and kind is not DuckDB:
        raise BadOption("external=True is only for DuckDB. Leave it out: other databases read only their own data.")
    database = kind(address, external=external)
    database.check()
    return database
