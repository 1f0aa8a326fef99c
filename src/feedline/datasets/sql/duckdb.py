"""DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from feedline._optional import require
from feedline.datasets.sql.database import Database, Rows, extended, in_groups
from feedline.datasets.sql.statement import Parameters
from feedline.errors import SourceError

_MOST_KEYS = 10_000
"""Keys in one statement. A guess: there is no limit, but a statement has to be read, too."""


class DuckDB(Database):
    """DuckDB, read-only and on one thread: several workers do not get in each other's way, and survive a fork.

    Views in a database can read any file of this machine and any address, so that is off unless it is asked for.
    """

    def check(self) -> None:
        assert self.address.path
        self._driver()

    def _driver(self) -> Any:
        return require("duckdb", extra="sql", purpose="SQLDataset of a DuckDB database")

    def connect(self) -> Any:
        path = os.path.abspath(self.address.path)
        if not os.path.exists(path):
            raise SourceError(f"There is no file {path!r}, which {self.address!r} names.")
        config = {"threads": 1, "enable_external_access": "true" if self.external else "false"}
        return self._driver().connect(path, read_only=True, config=config).cursor()

    def close(self, connection: Any) -> None:
        connection.close()

    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        description = connection.execute(statement, parameters).description
        return [(column[0], str(column[1]).lower()) for column in description]

    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        found: Rows = connection.execute(statement, parameters).fetchall()
        return found

    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        connection.execute(statement, parameters)  # a statement sees the database as it began
        while rows := connection.fetchmany(size):
            yield rows

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        found = []
        for group in in_groups(keys, _MOST_KEYS):
            marks, values = extended(parameters, group, "$")
            found.append((f"{column} IN ({', '.join(marks)})", values))
        return found

    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        (mark,), values = extended(parameters, [key], "$")
        return f"{column} > {mark}", values

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        return False

    def advice(self, exc: Exception) -> str:
        if not isinstance(exc, self._driver().PermissionException):
            return super().advice(exc)
        return (
            "The query, or a view in the database, reads something that is not in the database. If you trust both, "
            "give external=True."
        )

    def is_corrupt(self, exc: Exception) -> bool:
        return any(words in str(exc) for words in ("not a valid DuckDB", "orrupt", "checksum", "could not read"))
