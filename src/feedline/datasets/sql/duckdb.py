"""DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline._optional import require
from feedline.datasets.sql.database import Embedded, Rows
from feedline.datasets.sql.statement import Parameters


class DuckDB(Embedded):
    """DuckDB, read-only and on one thread: several workers do not get in each other's way, and survive a fork.

    Views in a database can read any file of this machine and any address, so that is off unless it is asked for.
    """

    most_keys = 10_000  # a guess: there is no limit, but a statement has to be read, too
    mark = "$"

    def check(self) -> None:
        super().check()
        self._driver()

    def _driver(self) -> Any:
        return require("duckdb", extra="sql", purpose="SQLDataset of a DuckDB database")

    def connect(self) -> Any:
        config = {"threads": 1, "enable_external_access": "true" if self.external else "false"}
        return self._driver().connect(self._file(), read_only=True, config=config).cursor()

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

    def is_corrupt(self, exc: Exception) -> bool:
        return any(words in str(exc) for words in ("not a valid DuckDB", "orrupt", "checksum", "could not read"))
