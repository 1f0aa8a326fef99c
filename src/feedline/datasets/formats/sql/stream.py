"""The rows of a query in sequence, read through a cursor."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from feedline.abc.source import Reshardable
from feedline.datasets.formats.sql.database import Connection, Rows
from feedline.datasets.formats.sql.query import Query, raise_for
from feedline.datasets.framework.passes import Part, PartedStream, ResumablePass
from feedline.datasets.framework.source import Transform
from feedline.errors import BadOption
from feedline.system.options import checked_count
from feedline.types import State

_HASH = "((CAST(abs({key} % 1000003) AS BIGINT) * 2654435761) >> 16) % {count:d} = {part:d}"
"""True for the numbers of one part, as in `part_of`. Scatters them, since keys may all be even; fits 64 bits."""


def part_of(key: object, count: int) -> int:
    """Return which of `count` parts a key belongs to."""
    if type(key) is int:
        return ((abs(key) % 1000003 * 2654435761) >> 16) % count
    text = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    return zlib.crc32(text) % count


class SQLStream(PartedStream, Reshardable):
    """The rows of a query in the order of their keys; created by `SQLDataset.stream`.

    Every worker of every rank reads the rows whose keys belong to its part, all from one snapshot of the database: a
    REPEATABLE READ transaction of PostgreSQL, or one statement of SQLite or DuckDB. So each row that exists throughout
    is read once, regardless of other changes to the table, and never mixes two versions. Ranks may differ in how many
    rows they have.

    A state holds the last key. Resuming continues after that key, in a new transaction. With another number of workers
    and ranks, every part skips those of its rows that were read before, by comparing them with the last keys of the
    former parts.
    """

    def __init__(self, query: Query, transform: Transform | None, size: int) -> None:
        super().__init__()
        self.query = query
        self.transform = transform
        self.size = checked_count("size", size, 1)

    def __iter__(self) -> SQLPass:
        return SQLPass(self, self._part())

    def reshard(self, left: Mapping[int, object], count: int, into: int, epoch: int) -> list[object]:
        ends: list[object] = [True] * count
        before: list[Any] = []  # Any: from a state
        for number, state in left.items():
            part = SQLPass(self, (number, count))
            if state is not None:
                part.load_state_dict(state)
                before = part._before
            ends[number] = part._end()
        keys = [end[0] for end in ends if type(end) is list]
        if None not in ends and keys and all(type(key) is int for key in keys):
            before = [past for past in before if not _is_over(past, min(keys))]
        state = {**SQLPass(self, (0, into)).state_dict(), "before": [*before, [count, ends]]}
        return [{**state, "part": [number, into]} for number in range(into)]

    def close(self) -> None:
        """Close the connections of this process, except those of passes in progress."""
        self.query.close()

    def __repr__(self) -> str:
        return f"SQLStream({self.query.database.address!r}, key={self.query.key!r}, size={self.size})"


# Any: from a state.
def _is_over(past: list[Any], key: int) -> bool:
    """True if none of these parts had read past a key."""
    return all(end is None or (type(end) is list and type(end[0]) is int and end[0] <= key) for end in past[1])


class SQLPass(ResumablePass[tuple[object, ...]]):
    """One pass over the rows of a part. After an error, it continues after the last row that it returned."""

    _name = "rows of a query"

    def __init__(self, stream: SQLStream, part: Part) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._connection: Connection | None = None
        self._batches: Iterator[Rows] | None = None
        self._rows: list[tuple[object, ...]] = []
        """Rows that were fetched and not returned yet, the next one last."""
        self._last: object = None
        """The key of the last row returned."""
        self._taken = 0
        self._has_ended = False
        self._before: list[Any] = []  # Any: from a state
        """Former parts, if others started the epoch: one pair for each change of the number of parts. A pair holds the
        number of parts, and where each of them was; see `_end`.
        """
        self._columns: dict[tuple[int, int], int] = {}
        """For keys that only the database can compare: the column that holds whether a key comes after such an end."""

    def _make(self, item: tuple[object, ...]) -> object:
        form = self._stream.query.form
        return form.build(item[1 : 1 + len(form.names)])

    def _take(self) -> tuple[object, ...]:
        """Return the next row of this part."""
        try:
            while not self._rows:
                if self._has_ended or self.has_broken_off:
                    raise StopIteration
                self._rows = self._fetch()[::-1]
            row = self._rows.pop()
            if self._taken and row[0] == self._last:
                raise self._stream.query.not_unique(row[0])
        except BadOption:
            self.has_broken_off = True
            self._rows = []
            self.close()
            raise
        self._last = row[0]
        self._taken += 1
        return row

    def try_again(self) -> bool:
        return super().try_again() or not self.has_broken_off  # no row is lost if fetching failed

    def _fetch(self) -> list[tuple[object, ...]]:
        """Return the next rows of this part; none if the fetched ones belong to other parts, or there are no more."""
        database = self._stream.query.database
        try:
            if self._batches is None:
                self._batches = self._open()
            rows = next(self._batches, None)
        except database.errors as exc:
            lost = self._connection is None or database.is_lost(self._connection, exc)
            self.close()
            raise_for(database, exc, "reading the rows", 0 if lost else None)
        except BaseException:
            self.close()
            raise
        if rows is None:
            self.close()
            self._has_ended = True
            return []
        if any(row[0] is None for row in rows):
            raise BadOption(f"A row has no key: column {self._stream.query.key!r} is null.")
        if not self._is_split_there:
            rows = [row for row in rows if part_of(row[0], self._part[1]) == self._part[0]]
        return [row for row in rows if not self._has_come(row)] if self._before else rows

    def _has_come(self, row: tuple[object, ...]) -> bool:
        """True if a row was read before the number of parts changed."""
        for number, (count, ends) in enumerate(self._before):
            part = part_of(row[0], count)
            end = ends[part]
            if end is None:
                continue
            column = self._columns.get((number, part))
            if end is True or (row[0] <= end[0] if column is None else not row[column]):
                return True
        return False

    def _open(self) -> Iterator[Rows]:
        query = self._stream.query
        database, parameters, key, names = query.database, query.parameters, query.quoted_key, query.form.names
        self._connection = database.connect()
        first = database.rows(self._connection, query.select([query.key], limit=1), parameters)
        conditions: list[str] = []
        columns, keys = [query.key, *names], list[object]()
        is_number = bool(first) and type(first[0][0]) is int
        if not is_number:
            for place, (_, ends) in enumerate(self._before):
                for part, end in enumerate(ends):
                    if type(end) is list:
                        self._columns[place, part] = len(columns) + len(keys)
                        keys.append(end[0])
        # The database itself can select a part by number. Other keys are all read, and those of other parts dropped.
        self._is_split_there = self._part[1] == 1 or is_number
        if self._part[1] > 1 and self._is_split_there:
            own = database.query(_HASH.format(key=key, count=self._part[1], part=self._part[0]), None)
            conditions.append(f"({own} OR {key} IS NULL)")
        last = self._last
        if self._taken:
            self._check_last(self._connection)
        elif is_number:
            last = self._lowest()
        if last is not None:
            (mark,), parameters = database.extended(parameters, [last])
            conditions.append(f"{key} > {mark}")
        marks, parameters = database.extended(parameters, keys, first=True) if keys else ([], parameters)
        more = [f"{key} > {mark}" for mark in marks]
        statement = query.select(columns, more=more, where=" AND ".join(conditions), by_key=True)
        return database.stream(self._connection, statement, parameters, self._stream.size)

    def _lowest(self) -> object:
        """Return the key up to which all rows were read before the number of parts changed; None if there is none."""
        lowest = [
            min(end[0] for end in ends if type(end) is list)
            for _, ends in self._before
            if None not in ends and any(type(end) is list for end in ends)
        ]
        return max(lowest, default=None)

    def _check_last(self, connection: Connection) -> None:
        """Raise BadOption if another row sorts equal to the last one: it would be unknown whether it was returned.

        Different keys may sort equal, such as "a" and "A" in a case-insensitive column.
        """
        query = self._stream.query
        ((where, parameters),) = query.database.with_keys([self._last], query.quoted_key, query.parameters)
        statement = query.select([query.key], where=where)
        found = [value for (value,) in query.database.rows(connection, statement, parameters)]
        if len(found) > 1:
            raise BadOption(
                f"The stream cannot resume after the key {self._last!r}: {len(found)} rows have keys that the database "
                f"considers equal, such as {found[0]!r} and {found[1]!r}, and it is not known which of them were read. "
                "Choose another key=, or make the query return each key once."
            )

    def close(self) -> None:
        """Close the connection of this pass."""
        batches, self._batches = self._batches, None
        connection, self._connection = self._connection, None
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]  # it is a generator
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        if self.__dict__.get("_connection") is not None:
            self.close()

    def _position(self) -> dict[str, object]:
        ended = self._has_ended and not self._rows
        return {"after": self._last, "taken": self._taken, "ended": ended, "before": self._before}

    def _end(self) -> object:
        """Return the position of the pass: None at the start, True at the end, otherwise the last key in a list."""
        return True if self._has_ended else [self._last] if self._taken else None

    def _options(self) -> dict[str, object]:
        return {"key": self._stream.query.key}

    def _enter(self, state: State) -> None:
        self.close()
        self._rows = []
        self._last, self._taken, self._has_ended = state["after"], state["taken"], state["ended"]
        self._before = state["before"]
