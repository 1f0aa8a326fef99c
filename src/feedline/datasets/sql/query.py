"""What a query returns, and who asks the database: what `SQLDataset` and its stream have in common."""

from __future__ import annotations

import functools
from typing import Any

from feedline.datasets.form import Fields, Form, check_fields
from feedline.datasets.handle import Handle
from feedline.datasets.source import TableSource, Transform
from feedline.datasets.sql.address import Address
from feedline.datasets.sql.database import Database
from feedline.datasets.sql.duckdb import DuckDB
from feedline.datasets.sql.keys import repeated
from feedline.datasets.sql.postgres import Postgres
from feedline.datasets.sql.session import Session
from feedline.datasets.sql.sqlite import Sqlite
from feedline.datasets.sql.statement import checked_parameters, checked_query, select
from feedline.errors import BadOption

# Any, throughout: values are what the driver makes of them.

_DATABASES: dict[str, type[Database]] = {
    "sqlite": Sqlite,
    "duckdb": DuckDB,
    "postgresql": Postgres,
    "postgres": Postgres,
}


class QuerySource(TableSource):
    """The rows of a query. What its columns are is found out when that is first needed."""

    _lazy: tuple[str, ...] = ("_types", "_made")

    def __init__(
        self,
        address: str,
        query: str,
        fields: Fields = None,
        *,
        key: str,
        parameters: Any = None,
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
            raise BadOption("external=True is about DuckDB. The queries of other databases read nothing else anyway.")
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
    def _shape(self) -> Form:
        if self._made is None:
            statement = select([], self._text, limit=0)
            columns = self._ask(
                lambda connection: self.database.describe(connection, statement, self.parameters),
                "looking at the query",
            )
            names = [name for name, _ in columns]
            twice = repeated(names)
            if twice is not None:
                raise BadOption(
                    f"The result of the query from {self.address!r} has several columns {twice!r}. "
                    "Name the columns that are wanted in the query, with AS where two have one name."
                )
            if self.key not in names:
                raise BadOption(
                    f"key={self.key!r} is no column of the query's result from {self.address!r}, which has {names}."
                )
            self._types = dict(columns)
            self._made = Form.of(self.fields, names, "the query's result")
        return self._made

    def _ask(self, act: Any, doing: str) -> Any:
        # A worker's first connection is not the dataset's first: whoever knows the columns was let in.
        return self._session.get().ask(act, doing, is_known=self._made is not None)

    def close(self) -> None:
        """Close the connections of this process. They are opened again when they are needed."""
        self._session.close()

    def _build(self, values: list[Any]) -> Any:
        return self._shape.build(values)

    def _form(self) -> str:
        form = self._shape
        types = self._types or {}
        return form.describe([types.get(name) or "any" for name in form.names])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.address!r}, key={self.key!r})"
