from __future__ import annotations

import datetime
import decimal
import threading
import uuid
from typing import Any

import pytest

import feedline
from feedline.datasets import SQLDataset
from feedline.datasets.formats.sql import query
from feedline.errors import SourceError
from feedline.types import EngineName
from tests.datasets.formats.sql.people import COUNT, make_postgres

QUERY = "SELECT * FROM people"
KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'feedline'"


@pytest.fixture
def dataset(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(query, "PAUSE_S", 0.0)
    made = SQLDataset(make_postgres(postgres), QUERY, key="id", fields="id")
    yield made
    made.close()


def kill(postgres: Any) -> int:
    with postgres.connection() as connection:
        return len(connection.execute(KILL).fetchall())


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_recovers_from_connections_that_are_killed_all_the_time(
    postgres: Any, dataset: Any, engine: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are killed at any moment: while a worker first connects, between its queries, or during one of them."""
    monkeypatch.setattr(
        query, "RETRIES", 1000
    )  # on a busy machine an attempt may take longer than the time between two kills
    assert len(dataset) == COUNT
    stop = threading.Event()
    killed = []

    def keep_killing() -> None:
        while not stop.wait(0.005):
            killed.append(kill(postgres))

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        start_method = "fork" if engine == "process" else None  # forking keeps the patched number of attempts
        loader = feedline.Loader(dataset, 3, workers=2, engine=engine, start_method=start_method)
        found = [x for batch in loader for x in batch.tolist()]
    finally:
        stop.set()
        killer.join()
    assert found == [i * 2 - 10 for i in range(COUNT)]
    assert sum(killed) > 0


def test_a_query_whose_backend_is_killed_fails_after_all_attempts(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend dies in the middle of the query at every attempt."""
    monkeypatch.setattr(query, "PAUSE_S", 0.0)
    address = make_postgres(postgres)
    with postgres.connection() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS calm (yes BOOL)")
        connection.execute("DELETE FROM calm")
        connection.execute(
            "CREATE OR REPLACE FUNCTION doomed(id BIGINT) RETURNS BIGINT AS $$ BEGIN "
            "IF NOT EXISTS (SELECT FROM calm) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
            "RETURN id; END $$ LANGUAGE plpgsql"
        )
    doomed = SQLDataset(address, "SELECT id, doomed(id) AS value FROM people", key="id", fields="value")
    with pytest.raises(SourceError, match="lost while reading the keys, and 3 further attempts"):
        len(doomed)
    with postgres.connection() as connection:
        connection.execute("INSERT INTO calm VALUES (true)")
        assert doomed[0] == -10
        connection.execute("DELETE FROM calm")
        with pytest.raises(SourceError, match="lost while reading samples, and 3 further attempts"):
            doomed[0]
        connection.execute("INSERT INTO calm VALUES (true)")
        assert doomed[1] == -8
    doomed.close()


def test_types(postgres: Any) -> None:
    identity = uuid.UUID(int=7)
    query = (
        f"SELECT 1::int2 AS small, 2::int8 AS large, 1.50::numeric AS price, true AS flag, 0.5::float4 AS half, "
        f"'{identity}'::uuid AS id, '2020-02-29'::date AS day, '2020-02-29 12:30'::timestamp AS time, "
        "'{1,2,NULL}'::int[] AS list, '{\"a\": [1]}'::jsonb AS tree, '\\x00ff'::bytea AS blob, NULL::text AS none"
    )
    dataset = SQLDataset(postgres.address(), query, key="id")
    assert dataset[0] == {
        "small": 1,
        "large": 2,
        "price": decimal.Decimal("1.50"),
        "flag": True,
        "half": 0.5,
        "id": identity,
        "day": datetime.date(2020, 2, 29),
        "time": datetime.datetime(2020, 2, 29, 12, 30),
        "list": [1, 2, None],
        "tree": {"a": [1]},
        "blob": b"\x00\xff",
        "none": None,
    }
    assert "'small': int2" in repr(dataset)
    dataset.close()


@pytest.mark.parametrize(
    "values",
    [
        "1::int2), (2::int2",
        "1.5::numeric), (2.5",
        "'2020-01-01'::date), ('2020-01-02'",
        "'a'::bytea), ('b'",
        "'00000000-0000-0000-0000-000000000001'::uuid), ('00000000-0000-0000-0000-000000000002'",
        "'2020-01-01 00:00+02'::timestamptz), ('2021-01-01 00:00+02'",
    ],
)
def test_keys_of_every_kind(postgres: Any, values: str) -> None:
    dataset = SQLDataset(postgres.address(), f"SELECT * FROM (VALUES ({values})) AS v (k)", key="k", fields="k")
    first, second = dataset[0], dataset[1]
    assert dataset.__getitems__([1, 0, 1]) == [second, first, second]
    assert list(dataset.stream()) == [first, second]
    dataset.close()


def test_queries_use_the_index_of_the_key(postgres: Any) -> None:
    """The query around the user's query does not prevent the server from using its index."""
    address = make_postgres(postgres)
    with postgres.connection() as connection:
        connection.execute("INSERT INTO people (id) SELECT generate_series(1000, 60000)")
        connection.execute("ANALYZE people")
    dataset = SQLDataset(address, f"{QUERY} WHERE id > %s", key="id", parameters=[0], fields="id")
    ((where, parameters),) = dataset.database.with_keys([1000, 2000], 'feedline_q."id"', dataset.parameters)
    statement = f"EXPLAIN SELECT * FROM (\n{dataset.query}\n) AS feedline_q WHERE {where}"
    plan = dataset._asked.rows(statement, parameters, "explaining")
    assert "Index" in str(plan)
    dataset.close()
