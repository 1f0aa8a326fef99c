from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import DuckDB, Sqlite, checked_parameters, checked_query, quoted, select
from feedline.errors import BadOption

pytestmark = pytest.mark.sample(4)

# SQLite itself does not find columns of a subquery that are called "true" or "false".
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda name: name.lower() not in ("true", "false")
)


@given(NAMES, st.integers(0, 9))
def test_names_cannot_inject_sql(name: str, value: int) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        statement = select([name], f"SELECT {value} AS {quoted(name)}", order=name, limit=3)
        cursor = database.execute(statement)
        assert cursor.fetchall() == [(value,)]


@pytest.mark.parametrize(
    ("query", "found"), [("SELECT 1", "SELECT 1"), (" SELECT 1 ; \n", "SELECT 1"), ("SELECT 1 -- x", "SELECT 1 -- x")]
)
def test_queries(query: str, found: str) -> None:
    assert checked_query(query) == found


@pytest.mark.parametrize("query", ["", " ; ", None, b"SELECT 1"])
def test_rejects_empty_queries_and_other_types(query: Any) -> None:
    with pytest.raises(BadOption, match="query="):
        checked_query(query)


def test_parameters() -> None:
    assert checked_parameters(None) is None
    assert checked_parameters((1, 2)) == [1, 2]
    assert checked_parameters({"a": 1}) == {"a": 1}
    for wrong in ("ab", b"ab", 3, {1, 2}):
        with pytest.raises(BadOption) as caught:
            checked_parameters(wrong)
        assert "ab" not in str(caught.value)  # the value may be a secret


def test_keys_are_added_after_the_parameters_of_the_query() -> None:
    database = DuckDB(Address("duckdb:///a.db"))
    assert database.with_keys([1, 2], "k", None) == [("k IN (?, ?)", [1, 2])]
    assert database.after_key(1, "k", [7]) == ("k > ?", [7, 1])
    assert database.after_key(1, "k", {"low": 7}) == ("k > $feedline_key_0", {"low": 7, "feedline_key_0": 1})


def test_the_number_of_keys_per_statement_is_limited() -> None:
    statements = Sqlite(Address("sqlite:///a.db")).with_keys(list(range(2000)), "k", None)
    assert [values for _, values in statements] == [[*range(900)], [*range(900, 1800)], [*range(1800, 2000)]]
