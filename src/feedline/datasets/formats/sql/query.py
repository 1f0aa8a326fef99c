"""A query: the SQL around it, its columns, and a connection for each thread that asks it.

Values never become part of a query's text; names are quoted.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from feedline.datasets.formats.sql.database import Connection, Database, Parameters, Rows
from feedline.datasets.framework.form import Fields, Form, check_fields
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.handle import Handle

T = TypeVar("T")

RETRIES = 3
"""How often to retry a query after the connection was lost."""
PAUSE_S = 0.2
"""Pause before the first retry; each further one is five times as long."""


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


class Query:
    """A query of the user's, and the column that identifies its rows."""

    def __init__(self, database: Database, text: str, key: str, parameters: Parameters, fields: Fields) -> None:
        check_fields(fields)
        self.database = database
        self.text = database.query(text.strip().rstrip(";"), parameters)
        """The query as the driver takes it, to be a part of another one."""
        self.key = key
        self.parameters = parameters
        self._fields = fields
        self._session: Handle[Session] = Handle(functools.partial(Session, database), Session.close, per_thread=True)
        self._form: Form | None = None
        self._types: dict[str, str] = {}

    def select(
        self,
        columns: Sequence[str],
        *,
        more: Sequence[str] = (),
        where: str = "",
        by_key: bool = False,
        limit: int | None = None,
    ) -> str:
        """Return a statement that selects columns of the query's result, all if none are named, and expressions."""
        listed = ", ".join([*(f"feedline_q.{quoted(column)}" for column in columns), *more]) if columns else "*"
        # The query ends with a newline, since it may end with a comment.
        text = f"SELECT {listed} FROM (\n{self.text}\n) AS feedline_q"
        if where:
            text += f" WHERE {where}"
        if by_key:
            text += f" ORDER BY {self.quoted_key}"
        return text if limit is None else f"{text} LIMIT {limit:d}"

    @property
    def quoted_key(self) -> str:
        """The name of the key in the statements that `select` returns."""
        return f"feedline_q.{quoted(self.key)}"

    @property
    def form(self) -> Form:
        """Which columns a sample has, and what container holds them; the database says so at first use."""
        if self._form is None:
            statement = self.select([], limit=0)
            columns = self.ask(
                lambda connection: self.database.describe(connection, statement, self.parameters),
                "describing the query",
            )
            names, address = [name for name, _ in columns], self.database.address
            twice = repeated(names)
            if twice is not None:
                raise BadOption(
                    f"The result of the query from {address!r} has several columns {twice!r}. List the columns you "
                    "need in the query, and rename duplicates with AS."
                )
            if self.key not in names:
                raise BadOption(
                    f"key={self.key!r} is not a column of the query's result from {address!r}, which has {names}."
                )
            self._types = dict(columns)
            self._form = Form.of(self._fields, names, "the query's result")
        return self._form

    def describe(self) -> str:
        """Describe a sample for people."""
        form = self.form
        return form.describe([self._types.get(name) or "any" for name in form.names])

    def ask(self, act: Callable[[Connection], T], doing: str) -> T:
        """Call `act` with the connection of this thread, as `Session.ask` does."""
        # A worker's first connection is not the query's first: if the columns are known, one has succeeded before.
        return self._session.get().ask(act, doing, is_known=self._form is not None)

    def rows(self, statement: str, parameters: Parameters, doing: str) -> Rows:
        """Return all rows of a statement's result."""
        return self.ask(lambda connection: self.database.rows(connection, statement, parameters), doing)

    def not_unique(self, value: object) -> BadOption:
        """Return the error for several rows with the same key."""
        return BadOption(
            f"{self.database.address!r}: several rows have the key {value!r}: column {self.key!r} is not unique in the "
            "query's result, so it does not identify a row. Choose another key=, or make the query return each key "
            "once."
        )

    def close(self) -> None:
        """Close the connections of this process. They are opened again when needed."""
        self._session.close()


class Session:
    """The connection of one thread."""

    def __init__(self, database: Database, pause: Callable[[float], object] = time.sleep) -> None:
        self._database = database
        self._pause = pause
        self._connection: Connection = None
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
            connection.close()


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


def repeated(values: Sequence[object]) -> object:
    """Return a value that occurs more than once, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
