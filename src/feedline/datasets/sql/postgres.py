"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline._optional import require
from feedline.datasets.sql.database import Database, Rows
from feedline.datasets.sql.statement import Parameters
from feedline.errors import BadOption

_OWN = "feedline_keys"


class Postgres(Database):
    """PostgreSQL, through psycopg 3."""

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

    def close(self, connection: Any) -> None:
        connection.close()

    def query(self, text: str, parameters: Parameters) -> str:
        # With parameters of our own the driver looks for placeholders, also in a query that was not meant to have any.
        return text.replace("%", "%%") if parameters is None else text

    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, _given(parameters))
            return [(column.name, column.type_display) for column in cursor.description]

    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        with connection.cursor() as cursor:
            found: Rows = cursor.execute(statement, _given(parameters)).fetchall()
            return found

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            with connection.cursor(name="feedline") as cursor:
                cursor.execute(statement, _given(parameters))
                while rows := cursor.fetchmany(size):
                    yield rows
        finally:
            if not connection.closed and not connection.broken:
                connection.execute("ROLLBACK")

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        mark, values = _extended(parameters, keys)
        return [(f"{column} = ANY({mark})", values)]

    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        mark, values = _extended(parameters, key)
        return f"{column} > {mark}", values

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        if connection is None:
            return isinstance(exc, self._driver().OperationalError)
        return bool(connection.closed or connection.broken)


def _given(parameters: Parameters) -> Any:
    return () if parameters is None else parameters  # never None: then placeholders would not be looked for


def _extended(parameters: Parameters, value: Any) -> tuple[str, Parameters]:
    if isinstance(parameters, dict):
        return f"%({_OWN})s", {**parameters, _OWN: value}
    return "%s", [*(parameters or ()), value]
