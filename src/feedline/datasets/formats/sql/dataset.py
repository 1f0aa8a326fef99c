"""The rows of a query as a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import Parameters, database_at
from feedline.datasets.formats.sql.query import Query, repeated
from feedline.datasets.formats.sql.stream import SQLStream
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform, stacked
from feedline.errors import BadOption, SourceChanged
from feedline.memory.sharing.packed import Packed

_INT64 = range(-(1 << 63), 1 << 63)


class SQLDataset(TableSource):
    """The rows of a query as a map-style dataset: a batch is one query.

    The keys of all rows are read once, in order, when you first ask for the length or a sample; workers receive them
    with the dataset. Sample i is the row with the i-th key, even if rows are added to the database later. Every worker
    and every thread opens its own read-only connection when it needs one.

    Values are those of the driver: None, int, float, str, bytes, and the usual Python objects for other types such as
    dates, decimals and arrays.

    Args:
        address: the connection string: `sqlite:///people.db`, `sqlite:////absolute/path.db`, `duckdb:///people.db` or
            `postgresql://user:password@host/database`. The password is in pickles of the dataset, for workers to
            connect; it is neither in the repr nor in errors. PostgreSQL's `PGPASSWORD` and `~/.pgpass` work as well.
        query: a SELECT statement. Placeholders are those of the driver: `?` or `:name` for SQLite, `?` or `$name` for
            DuckDB, `%s` or `%(name)s` for PostgreSQL.
        fields: which columns, and in which form: a name for the value itself, a tuple of names for tuples, a list of
            names for dicts, a dict from your own names to columns; None for dicts of all columns.
        key: a column of the result that identifies rows: unique, never null, and indexed if reads are to be fast.
        parameters: values for the placeholders: a list, or a dict for named ones. They never become part of the query's
            text.
        transform: applied to each sample.
        external: DuckDB only: True to let the query, and views in the database, read other files and addresses.

    Raises:
        MissingExtra: the driver is not installed.
        BadOption: an option has an invalid value; at first use: the result lacks a column, or the key is not unique.
        SourceError: the database cannot be reached, or refuses the query.
        CorruptSource: the database is damaged.
        SourceChanged: a row has disappeared since the keys were read.

    Example:
        >>> import sqlite3, tempfile, pathlib, contextlib
        >>> from feedline.datasets import SQLDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.db")
        ...     with contextlib.closing(sqlite3.connect(path)) as db, db:
        ...         _ = db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, born INTEGER)")
        ...         _ = db.executemany("INSERT INTO people VALUES (?, ?, ?)", [(7, "Ada", 1815), (9, "Alan", 1912)])
        ...     dataset = SQLDataset(
        ...         f"sqlite:///{path}", "SELECT * FROM people WHERE born > ?", key="id", parameters=[1900]
        ...     )
        ...     print(len(dataset), dataset[0])
        ...     dataset.close()
        1 {'id': 9, 'name': 'Alan', 'born': 1912}
    """

    _lazy = ("_keys", "_asked")

    def __init__(
        self,
        address: str,
        query: str,
        fields: Fields = None,
        *,
        key: str,
        parameters: Parameters = None,
        transform: Transform | None = None,
        external: bool = False,
    ) -> None:
        super().__init__(transform)
        self.address = Address(address)
        self.database = database_at(self.address, external=external)
        if isinstance(parameters, (str, bytes)):  # not shown: it may be a secret
            raise BadOption("parameters= is neither a list of values nor a dict of named ones.")
        self.query, self.key, self.fields = query, key, fields
        self.parameters: Parameters = dict(parameters) if isinstance(parameters, Mapping) else parameters
        self._asked = Query(self.database, query, key, self.parameters, fields)
        self._keys: Keys | None = None

    @property
    def _shape(self) -> Form:  # type: ignore[override]  # determined at first use
        return self._asked.form

    @property
    def _all_keys(self) -> Keys:
        if self._keys is None:
            assert self._shape is not None
            rows = self._asked.rows(self._asked.select([self.key], by_key=True), self.parameters, "reading the keys")
            values = [value for (value,) in rows]
            missing = values.count(None)
            if missing:
                raise BadOption(
                    f"{self.address!r}: {missing} of {len(values)} rows have no key: column {self.key!r} is null. "
                    "Choose another key=, or leave these rows out of the query."
                )
            try:
                twice = repeated(values)
            except TypeError:
                raise BadOption(
                    f"{self.address!r}: values of {self.key!r} such as {values[0]!r} cannot be keys."
                ) from None
            if twice is not None:
                raise self._asked.not_unique(twice)
            self._keys = Keys(values)
        return self._keys

    def __len__(self) -> int:
        return len(self._all_keys)

    def stream(self, *, size: int = 1000) -> SQLStream:
        """Return an iterable dataset of the same rows in key order, read through a cursor.

        It reads no keys in advance, so it starts at once and takes no memory for them, however many rows there are.

        `size` rows are fetched at a time. Raises BadOption if it is not a positive number.
        """
        return SQLStream(self._asked, self.transform, size)

    def _rows(self, indices: Indices) -> list[Sequence[object]]:
        """Return the selected columns of some samples, in the order of `indices`, with one query."""
        if not len(indices):
            return []
        form = self._shape
        wanted, places = np.unique(indices, return_inverse=True)
        keys = self._all_keys.at(wanted)
        columns = [self.key, *form.names]
        found: dict[object, Sequence[object]] = {}
        for where, parameters in self.database.with_keys(keys, self._asked.quoted_key, self.parameters):
            for row in self._asked.rows(self._asked.select(columns, where=where), parameters, "reading samples"):
                if row[0] in found:
                    raise SourceChanged(
                        f"{self.address!r}: the key {row[0]!r} of the query's result is no longer unique. Create the "
                        "dataset again."
                    )
                found[row[0]] = row[1:]
        try:
            rows = [found[key] for key in keys]
        except KeyError as exc:
            gone = exc.args[0]
            raise SourceChanged(
                f"{self.address!r} no longer has a row with {self.key} = {gone!r}, which is sample "
                f"{wanted[keys.index(gone)]}: it was deleted, or no longer meets the query's conditions. Create the "
                "dataset again."
            ) from exc
        return [rows[place] for place in places.tolist()]

    def _read(self, indices: Indices) -> list[object]:
        build = self._shape.build
        return [build(row) for row in self._rows(indices)]

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        return [stacked(list(values), empty) for values in zip(*self._rows(indices), strict=True)]

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._asked.close()

    def _form(self) -> str:
        return self._asked.describe()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.address!r}, key={self.key!r})"


class Keys:
    """Keys in sample order: integers take 8 bytes each; strings omit what they share with their neighbours.

    Keys of other types, such as dates, are stored as objects.
    """

    # Any: values of one type that can be compared.
    def __init__(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values))
        self._values: Any = list(values)
        if kinds == {int} and min(values) in _INT64 and max(values) in _INT64:
            self._values = np.array(values, np.int64)
        elif kinds in ({str}, {bytes}):
            self._values = Packed(self._values, is_text=kinds == {str})

    def __len__(self) -> int:
        return len(self._values)

    def at(self, indices: object) -> list[object]:
        """Return the keys of some samples."""
        places = np.asarray(indices, np.int64)
        if isinstance(self._values, np.ndarray):
            found: list[object] = self._values[places].tolist()
            return found
        get = self._values.get if isinstance(self._values, Packed) else self._values.__getitem__
        return list(map(get, places.tolist()))
