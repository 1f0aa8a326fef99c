"""The query and its connections: the common base of `SQLDataset` and its stream."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import (
    Connection,
    Database,
    DuckDB,
    Postgres,
    Sqlite,
    checked_parameters,
    checked_query,
    select,
)
from feedline.datasets.framework.form import Fields, Form, check_fields
from feedline.datasets.framework.source import TableSource, Transform
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.handle import Handle

T = TypeVar("T")

RETRIES = 3
"""How often to retry a query after the connection was lost."""
PAUSE_S = 0.2
"""Pause before the first retry; each further one is five times as long."""


class Session:
    """The connection of one thread."""

    def __init__(self, database: Database, pause: Callable[[float], object] = time.sleep) -> None:
        self._database = database
        self._pause = pause
        self._connection: Connection | None = None
        self._has_connected = False

    def ask(self, act: Callable[[Connection], T], doing: str, *, is_known: bool = False) -> T:
        """Call `act` with the connection; if that is lost, call it again with a new one. `act` must only read.

        Raises CorruptSource if the database is damaged; SourceError if the call failed for another reason, or
        reconnecting failed.
        """
        attempt = 0
        self._has_connected |= is_known
        while True:
            try:
                if self._connection is None:
                    self._connection = self._database.connect()
                    self._has_connected = True
                return act(self._connection)
            except self._database.errors as exc:
                lost = self._database.is_lost(self._connection, exc)
                if lost:
                    self.close()
                # Do not retry a connection that never succeeded: report a wrong password at once.
                if not lost or not self._has_connected or attempt == RETRIES:
                    raise_for(self._database, exc, doing, attempt if lost else None)
            self._pause(PAUSE_S * 5**attempt)
            attempt += 1

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.close(connection)


def raise_for(database: Database, exc: Exception, doing: str, attempts: int | None) -> NoReturn:
    """Raise the feedline error for a driver's error, without showing a password or user name."""
    why = database.address.hide(" ".join(str(exc).split())).rstrip(".?") or type(exc).__name__
    where = repr(database.address)
    # A driver's exception may hold the connection and its secrets, which loggers show.
    cause = exc if where == database.address.text else None
    if database.is_corrupt(exc):
        raise CorruptSource(
            f"{where} is damaged, or not such a database: {why} (while {doing}). Restore it from a backup. If it has "
            "text that is not UTF-8, select it as CAST(column AS BLOB)."
        ) from cause
    if attempts is not None:
        tried = f", and {attempts} further attempts did not help" if attempts else ""
        raise SourceError(
            f"{where} could not be reached, or was lost while {doing}{tried}: {why}. Is the server running, and does "
            "it accept this user?"
        ) from cause
    raise SourceError(f"{where} refused the query or failed while {doing}: {why}. {database.advice(exc)}") from cause


_DATABASES: dict[str, type[Database]] = {
    "sqlite": Sqlite,
    "duckdb": DuckDB,
    "postgresql": Postgres,
    "postgres": Postgres,
}


class QuerySource(TableSource):
    """The rows of a query. Its columns are determined when they are first needed."""

    _lazy: tuple[str, ...] = ("_types", "_made")

    def __init__(
        self,
        address: str,
        query: str,
        fields: Fields = None,
        *,
        key: str,
        parameters: object = None,
        transform: Transform | None = None,
        external: bool = False,
    ) -> None:
        super().__init__(transform)
        self.address = Address(address)
        self.query = checked_query(query)
        if type(key) is not str or not key:
            raise BadOption(f"key={key!r} is not the name of a column.")
        self.key = key
        self.parameters = checked_parameters(parameters)
        check_fields(fields)
        self.fields = fields
        if external and self.address.scheme != "duckdb":
            raise BadOption("external=True is only for DuckDB. Leave it out: other databases read only their own data.")
        self.database = _DATABASES[self.address.scheme](self.address, external=bool(external))
        self.database.check()
        self._session: Handle[Session] = Handle(
            functools.partial(Session, self.database), Session.close, per_thread=True
        )
        self._types: dict[str, str] | None = None
        self._made: Form | None = None

    @property
    def _text(self) -> str:
        return self.database.query(self.query, self.parameters)

    @property
    def _shape(self) -> Form:  # type: ignore[override]  # determined at first use
        if self._made is None:
            statement = select([], self._text, limit=0)
            columns = self._ask(
                lambda connection: self.database.describe(connection, statement, self.parameters),
                "describing the query",
            )
            names = [name for name, _ in columns]
            twice = repeated(names)
            if twice is not None:
                raise BadOption(
                    f"The result of the query from {self.address!r} has several columns {twice!r}. "
                    "List the columns you need in the query, and rename duplicates with AS."
                )
            if self.key not in names:
                raise BadOption(
                    f"key={self.key!r} is not a column of the query's result from {self.address!r}, which has {names}."
                )
            self._types = dict(columns)
            self._made = Form.of(self.fields, names, "the query's result")
        return self._made

    def _ask(self, act: Callable[[Connection], T], doing: str) -> T:
        # A worker's first connection is not the dataset's first: if the columns are known, one has succeeded before.
        return self._session.get().ask(act, doing, is_known=self._made is not None)

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._session.close()

    def _form(self) -> str:
        form = self._shape
        types = self._types or {}
        return form.describe([types.get(name) or "any" for name in form.names])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.address!r}, key={self.key!r})"


def repeated(values: Sequence[object]) -> object:
    """Return a value that occurs more than once, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
