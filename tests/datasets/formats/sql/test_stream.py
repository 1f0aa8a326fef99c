from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import SQLDataset
from feedline.datasets.formats.sql.stream import SQLPass
from feedline.errors import BadOption, SourceError
from feedline.faults import Retry
from feedline.testing.asserting import assert_same
from feedline.types import EngineName
from tests.datasets.formats.sql.people import COUNT, make_postgres, rows, samples
from tests.datasets.formats.sql.test_dataset import change

QUERY = "SELECT * FROM people"
IDS = [row[0] for row in rows()]


def stream_of(address: str, key: str = "id", fields: Any = "id", size: int = 7, **options: Any) -> Any:
    return SQLDataset(address, options.pop("query", QUERY), key=key, fields=fields, **options).stream(size=size)


@pytest.mark.parametrize("key", ["id", "name"])
def test_workers_split_the_rows(address: str, key: str) -> None:
    stream = stream_of(address, key)
    ways: list[tuple[EngineName, int]] = [("thread", 2), ("process", 3)]
    for engine, workers in ways:
        loader = feedline.DataLoader(stream, 4, num_workers=workers, engine=engine)
        assert sorted(x for batch in loader for x in batch.tolist()) == IDS
    stream.close()


@pytest.mark.parametrize("key", ["id", "name"])
def test_parts_are_of_similar_size_and_disjoint(address: str, key: str) -> None:
    """Even though all numbers are even."""
    stream = stream_of(address, key)
    parts = [list(SQLPass(stream, (part, 3))) for part in range(3)]
    assert sorted(x for part in parts for x in part) == IDS
    assert min(map(len, parts)) >= 5
    stream.close()


def test_resumes_at_every_row(address: str) -> None:
    stream = stream_of(address, fields=None)
    for taken in (0, 1, 6, 7, 8, COUNT - 1, COUNT):
        reading = SQLPass(stream, (0, 1))
        assert_same([next(reading) for _ in range(taken)], samples()[:taken])
        state = json.loads(json.dumps(reading.state_dict()))
        reading.close()
        other = SQLPass(stream, (0, 1))
        other.load_state_dict(state)
        assert_same(list(other), samples()[taken:])
    stream.close()


def test_parameters_percent_signs_and_transforms(address: str) -> None:
    mark = "%s" if address.startswith("postgres") else "?"
    sign = "%%" if address.startswith("postgres") else "%"
    stream = stream_of(
        address, query=f"{QUERY} WHERE id > {mark} AND name LIKE 'n{sign}'", parameters=[20], transform=_negative
    )
    reading = SQLPass(stream, (0, 2))
    next(reading)
    state = reading.state_dict()
    rest = list(reading)
    other = SQLPass(stream, (0, 2))
    other.load_state_dict(state)
    assert list(other) == rest
    assert sorted([*SQLPass(stream, (1, 2)), *SQLPass(stream, (0, 2))]) == [-x for x in IDS if x > 20][::-1]
    stream.close()


def _negative(x: int) -> int:
    return -x


def test_a_pass_reads_a_snapshot_from_its_start(address: str, request: pytest.FixtureRequest) -> None:
    if address.startswith("duckdb"):
        pytest.skip("no other connection can write to a DuckDB file that is being read")
    if address.startswith("sqlite"):
        change(address, "PRAGMA journal_mode=WAL")  # otherwise no other connection could write meanwhile
    stream = stream_of(address, size=3)
    reading = iter(stream)
    assert next(reading) == IDS[0]
    statements = ("DELETE FROM people WHERE id > 0", "INSERT INTO people (id) VALUES (-9)")
    if address.startswith("sqlite"):
        for statement in statements:
            change(address, statement)
    else:
        with request.getfixturevalue("postgres").connection() as connection:
            for statement in statements:
                connection.execute(statement)
    assert list(reading) == IDS[1:]
    assert len(list(stream)) < COUNT
    stream.close()


def test_a_lost_connection_raises_and_the_rest_can_be_read_later(postgres: Any) -> None:
    stream = stream_of(make_postgres(postgres), size=3)
    reading = iter(stream)
    found = [next(reading) for _ in range(3)]
    with postgres.connection() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'feedline'")
    with pytest.raises(SourceError, match="was lost while reading the rows"):
        next(reading)
    assert found + list(reading) == IDS  # continuing misses nothing
    stream.close()


def test_abandoned_passes_close_their_connections(address: str, request: pytest.FixtureRequest) -> None:
    stream = stream_of(address)
    reading = iter(stream)
    next(reading)
    assert reading._connection is not None
    del reading
    if address.startswith("postgres"):
        with request.getfixturevalue("postgres").connection() as connection:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'feedline' AND state LIKE 'idle in%'"
            )
            assert connection.execute(query).fetchone() == (0,)
    stream.close()


def test_keys_must_be_unique(address: str) -> None:
    query = "SELECT id, CASE WHEN id < 10 THEN 0 ELSE id END AS few FROM people WHERE id >= 8"
    stream = stream_of(address, key="few", query=query, size=1)
    assert list(stream)[:1] == [8]
    stream.close()
    stream = stream_of(address, key="few", query=query.replace("8", "6"), size=1)
    rows = iter(stream)
    assert next(rows) in (6, 8)
    state = rows.state_dict()
    with pytest.raises(BadOption, match="several rows have the key 0: column 'few' is not unique"):
        next(rows)
    with pytest.raises(StopIteration):  # it is unknown how many rows are missing
        next(rows)
    again = iter(stream)
    again.load_state_dict(state)
    with pytest.raises(BadOption, match="cannot resume after the key 0: 2 rows"):
        next(again)
    rows.close()
    again.close()
    stream.close()


def test_keys_that_only_the_database_considers_equal(tmp_path: Path) -> None:
    """Their rows are read, but a state between them is rejected, since resuming could lose one."""
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
        db.execute("CREATE TABLE t (k TEXT COLLATE NOCASE, v INTEGER)")
        db.executemany("INSERT INTO t VALUES (?, ?)", [("a", 1), ("A", 2), ("b", 3), ("c", 4)])
    stream = stream_of(f"sqlite:///{tmp_path / 'x.db'}", key="k", fields="v", query="SELECT * FROM t")
    assert sorted(stream) == [1, 2, 3, 4]
    rows = iter(stream)
    for count in range(1, 4):
        next(rows)
        again = iter(stream)
        again.load_state_dict(rows.state_dict())
        if count < 3:
            with pytest.raises(BadOption, match=r"'a' and 'A'|'A' and 'a'"):
                next(again)
        else:
            assert list(again) == [4]
    rows.close()
    stream.close()


class Failing:
    """Fails for some rows, once or always."""

    def __init__(self, *, always: bool) -> None:
        self._always = always
        self._failed: set[int] = set()

    def __call__(self, number: int) -> int:
        if number % 6 == 0 and (self._always or number not in self._failed):
            self._failed.add(number)
            raise ValueError(number)
        return number


def test_a_state_saved_after_a_retry(sqlite: str) -> None:
    stream = stream_of(sqlite, transform=Failing(always=False))
    reading = iter(stream)
    found = []
    for _ in IDS[:10]:
        try:
            found.append(next(reading))
        except ValueError:
            reading.try_again()
            reading.try_again()  # the second call does nothing
            found.append(next(reading))
    rest = stream_of(sqlite)
    other = iter(rest)
    other.load_state_dict(reading.state_dict())
    assert [*found, *other] == IDS
    reading.close()
    stream.close()
    rest.close()


@pytest.mark.parametrize("extra", [(5, 99), (None, 7)])
def test_invalid_keys_are_errors_that_no_policy_skips(extra: Any, tmp_path: Path) -> None:
    stream = stream_with(extra, tmp_path / "x.db")
    policies: list[Any] = ["skip", "retry", Retry(1, then="skip", wait_s=0), None]
    for on_error in policies:
        with feedline.Loader(stream, 4, on_error=on_error) as loader, pytest.raises(BadOption, match="key"):
            list(loader)
    stream.close()


def stream_with(extra: Any, path: Path) -> Any:
    """Return a stream of 30 rows with the keys 0, 1, ... and one more."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE t (k INTEGER, v INTEGER)")
        db.executemany("INSERT INTO t VALUES (?, ?)", [*((number, number) for number in range(30)), extra])
    return stream_of(f"sqlite:///{path}", key="k", fields="v", query="SELECT * FROM t", size=4)


@pytest.mark.parametrize("extra", [(5, 99), (None, 7)])
def test_a_state_saved_after_an_invalid_key_does_not_hide_it(extra: Any, tmp_path: Path) -> None:
    stream = stream_with(extra, tmp_path / "x.db")
    rows = iter(stream)
    with pytest.raises(BadOption):
        list(rows)
    assert not rows.try_again()
    assert list(rows) == []
    rows.load_state_dict(rows.state_dict())
    with pytest.raises(BadOption):
        list(rows)
    rows.close()
    stream.close()


@pytest.mark.parametrize("key", ["id", "name"])
def test_remaining_rows_are_split_among_another_number_of_parts(address: str, key: str) -> None:
    """From two parts to three to two, each row comes once, even if one part had not started and one had finished."""
    stream = stream_of(address, key)
    found: list[Any] = []

    def take(parts: list[SQLPass], counts: list[int]) -> dict[int, Any]:
        left: dict[int, Any] = {}
        for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
            found.extend(itertools.islice(part, count))
            left[number] = json.loads(json.dumps(part.state_dict())) if count else None
            part.close()
        return left

    def parts(states: list[Any]) -> list[SQLPass]:
        made = [SQLPass(stream, (number, len(states))) for number in range(len(states))]
        for part, state in zip(made, states, strict=True):
            if state is not None:
                part.load_state_dict(state)
        return made

    states = stream.reshard(take(parts([None, None]), [9, 0]), 2, 3, 0)
    left = take(parts(states), [2, 4, 100])
    states = stream.reshard(left, 3, 2, 0)
    take(parts(states), [100, 100])
    assert sorted(found) == sorted(IDS)
    stream.close()


def test_states_forget_keys_that_all_parts_have_passed(sqlite: str) -> None:
    stream = stream_of(sqlite)
    states: list[Any] = [None, None]
    for _ in range(5):
        made = [SQLPass(stream, (number, 2)) for number in range(2)]
        for part, state in zip(made, states, strict=True):
            if state is not None:
                part.load_state_dict(state)
            list(itertools.islice(part, 3))
        states = stream.reshard({number: part.state_dict() for number, part in enumerate(made)}, 2, 2, 0)
        for part in made:
            part.close()
        assert len(states[0]["before"]) <= 2
    stream.close()
