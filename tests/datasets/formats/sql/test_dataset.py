from __future__ import annotations

import contextlib
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets import SQLDataset
from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import Sqlite
from feedline.datasets.formats.sql.dataset import Keys
from feedline.datasets.formats.sql.query import Query, quoted
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.sql.people import COUNT, make_postgres, make_sqlite, samples

QUERY = "SELECT * FROM people"


class _Contract(SourceContract):
    kind = ""

    @pytest.fixture(autouse=True)
    def _database(self, make: Callable[..., str]) -> None:
        self.address = make(self.kind)

    def make_source(self, **options: Any) -> SQLDataset:
        return SQLDataset(self.address, QUERY, key="id", **options)

    def samples(self) -> list[Any]:
        return samples()


class TestSqlite(_Contract):
    kind = "sqlite"


class TestDuckDB(_Contract):
    kind = "duckdb"


class TestPostgres(_Contract):
    kind = "postgres"


PLACEHOLDERS = {"sqlite": ("?", ":low"), "duckdb": ("?", "$low"), "postgres": ("%s", "%(low)s")}


def change(sqlite: str, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as database, database:
        database.execute(statement)


def test_parameters_of_both_kinds(kind: str, address: str) -> None:
    kept = [sample for sample in samples() if sample["id"] >= 20]
    given: list[Any] = [[20], {"low": 20}]
    for mark, parameters in zip(PLACEHOLDERS[kind], given, strict=True):
        dataset = SQLDataset(address, f"{QUERY} WHERE id >= {mark}", key="id", parameters=parameters)
        assert_same(dataset.__getitems__(range(len(dataset))), kept)
        dataset.close()


def test_parameters_cannot_inject_sql(kind: str, address: str) -> None:
    mark = PLACEHOLDERS[kind][0]
    for name in ("x' OR '1'='1", "'; DELETE FROM people; --", "%s", "?", ":low"):
        dataset = SQLDataset(address, f"{QUERY} WHERE name = {mark}", key="id", parameters=[name])
        assert len(dataset) == 0
        dataset.close()
    with contextlib.closing(SQLDataset(address, QUERY, key="id")) as dataset:
        assert len(dataset) == COUNT


def test_strings_as_keys(address: str) -> None:
    """The strings look like SQL."""
    dataset = SQLDataset(address, QUERY, key="name", fields=("name", "id"))
    names = sorted(sample["name"] for sample in samples())
    assert sorted(name for name, _ in dataset) == names
    keys = [dataset[index][0] for index in range(COUNT)]
    assert [name for name, _ in dataset.__getitems__(range(COUNT))[::-1]] == keys[::-1]
    dataset.close()


def test_percent_signs_comments_and_semicolons(address: str) -> None:
    query = "SELECT id, name, id % 4 AS rest FROM people WHERE name LIKE '%1%' ;  \n"
    dataset = SQLDataset(address, query, key="id")
    assert [sample["id"] for sample in dataset] == [s["id"] for s in samples() if "1" in s["name"]]
    dataset.close()
    dataset = SQLDataset(address, "SELECT * FROM people -- all of them", key="id")
    assert len(dataset) == COUNT
    dataset.close()


def test_queries_cannot_write(kind: str, address: str) -> None:
    for query in ("DELETE FROM people RETURNING *", "WITH gone AS (DELETE FROM people RETURNING *) SELECT * FROM gone"):
        dataset = SQLDataset(address, query, key="id")
        with pytest.raises(SourceError):
            len(dataset)
        dataset.close()
    dataset = SQLDataset(address, QUERY, key="id")
    assert len(dataset) == COUNT
    statement = "DELETE FROM people"
    with pytest.raises(SourceError, match=r"read.?only|readonly|Cannot execute"):
        dataset._asked.rows(statement, None, "trying")
    dataset.close()


def test_a_batch_takes_one_query(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SQLDataset(address, QUERY, key="id")
    assert len(dataset) == COUNT
    asked: list[str] = []
    rows = dataset.database.rows

    def noted(connection: Any, statement: str, parameters: Any) -> Any:
        asked.append(statement)
        return rows(connection, statement, parameters)

    monkeypatch.setattr(dataset.database, "rows", noted)
    dataset.__getitems__([5, 30, 5, 0, 39])
    assert len(asked) == 1
    dataset.close()


def test_a_deleted_row_is_detected(sqlite: str) -> None:
    dataset = SQLDataset(sqlite, QUERY, key="id")
    assert len(dataset) == COUNT
    change(sqlite, "DELETE FROM people WHERE id = -4")
    change(sqlite, "INSERT INTO people (id, name) VALUES (1000, 'late')")
    assert dataset[4]["id"] == -2
    assert len(dataset) == COUNT
    with pytest.raises(SourceChanged, match=r"no longer has a row with id = -4, which is sample 3.*deleted"):
        dataset.__getitems__([4, 3])
    dataset.close()


def test_keys_must_be_unique_and_not_null(address: str) -> None:
    for query, key, named in (
        ("SELECT id / id AS one, id FROM people WHERE id > 0", "one", "key 1"),
        (QUERY, "note", "32 of 40 rows"),
        (QUERY, "colour", "'colour'.*'name'"),
    ):
        with contextlib.closing(SQLDataset(address, query, key=key)) as dataset, pytest.raises(BadOption, match=named):
            len(dataset)


def test_rejects_several_columns_of_the_same_name(postgres: Any) -> None:
    address = make_postgres(postgres)  # other databases rename the second column
    dataset = SQLDataset(address, "SELECT a.id AS x, b.id AS x FROM people a JOIN people b USING (id)", key="x")
    with pytest.raises(BadOption, match="several columns 'x'"):
        len(dataset)
    dataset.close()


def test_an_absolute_path_with_special_characters(tmp_path: Path) -> None:
    folder = tmp_path / "päth %41 with spaces"
    folder.mkdir()
    make_sqlite(folder / "a#b?c.db")
    name = str(folder / "a#b?c.db").replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    dataset = SQLDataset(f"sqlite:///{name}", QUERY, key="id")
    assert len(dataset) == COUNT
    dataset.close()


def test_a_deleted_dataset_closes_its_connections(address: str) -> None:
    """Drivers warn about connections that were not closed, and warnings are errors here."""
    dataset = SQLDataset(address, QUERY, key="id", fields="id")
    assert dataset[0] == -10
    connection = dataset._asked._session.get()._connection
    assert connection is not None
    del dataset
    with pytest.raises(Exception, match=r"(?i)closed"):
        connection.execute("SELECT 1")


def test_a_duckdb_view_cannot_read_other_files_by_default(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "secret.csv").write_text("id\n7\n")
    with duckdb.connect(str(tmp_path / "a.db")) as made:
        made.execute(f"CREATE VIEW people AS SELECT * FROM read_csv('{tmp_path / 'secret.csv'}')")
    address = f"duckdb:///{tmp_path / 'a.db'}"
    for query in ("SELECT * FROM people", f"SELECT * FROM '{tmp_path / 'secret.csv'}'"):
        dataset = SQLDataset(address, query, key="id")
        with pytest.raises(SourceError, match=r"not in the database.*external=True"):
            len(dataset)
        dataset.close()
    trusted = SQLDataset(address, "SELECT * FROM people", key="id", fields="id", external=True)
    assert list(trusted) == [7]
    trusted.close()
    with pytest.raises(BadOption, match="only for DuckDB"):
        SQLDataset("sqlite:///a.db", "SELECT 1", key="id", external=True)


@pytest.mark.parametrize("count", [899, 900, 2500])
def test_more_keys_and_parameters_than_fit_into_a_statement(kind: str, make: Callable[..., str], count: int) -> None:
    address = make(kind, count)
    dataset = SQLDataset(address, QUERY, key="id", fields="id")
    assert dataset.__getitems__(range(count)[::-1]) == [i * 2 - 10 for i in range(count)][::-1]
    dataset.close()
    if kind == "sqlite" and (count < 999 or sqlite3.sqlite_version_info >= (3, 32)):
        query = f"{QUERY} WHERE id IN ({', '.join('?' * count)})"
        dataset = SQLDataset(address, query, key="id", parameters=list(range(count)))
        assert len(dataset.__getitems__([1, 0])) == 2
        dataset.close()


@pytest.mark.parametrize("query", ["", "SELECT * FROM nobody", "SELEKT 1", "SELECT * FROM people WHERE id = ?"])
def test_queries_that_fail(sqlite: str, query: str) -> None:
    dataset = SQLDataset(sqlite, query, key="id")
    with pytest.raises(SourceError, match="Check query="):
        len(dataset)
    dataset.close()


@pytest.mark.parametrize(
    "text",
    [
        *("sqlite://a.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///a?mode=rw", "duckdb://", "people.db", ""),
        *("mysql://u:s3cret@h/d", b"sqlite://s3cret", None, "host=h password=s3cret"),
    ],
)
def test_addresses_that_are_refused(text: Any) -> None:
    with pytest.raises(BadOption) as caught:
        SQLDataset(text, QUERY, key="id")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada@h:1/d", "postgresql://***@h:1/d"),
        ("postgresql://ada:pw@h:1/d?sslmode=require", "postgresql://***@h:1/d?***"),
        ("postgresql:///d?host=/tmp/x", "postgresql:///d?***"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("sqlite:///a.db?key=pw", "sqlite:///a.db?***"),
        ("duckdb://ada:pw@/a.db", "duckdb://***@/a.db"),
    ],
)
def test_users_and_options_are_never_shown(text: str, shown: str) -> None:
    assert repr(Address(text)) == shown


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=4))
def test_passwords_are_never_shown(password: str) -> None:
    if password in "postgresql://***@host/people":
        return
    address = Address(f"postgresql://ada:{quote(password, safe='')}@host/people")
    assert password not in repr(address)
    assert quote(password, safe="") not in repr(address)
    assert password not in address.hide(f"it was {password}!").removeprefix("it was ")
    assert "ada" not in address.hide('no password for user "ada"')


@pytest.mark.parametrize("damage", ["foreign", "cut off", "damaged", "not UTF-8"])
def test_files_that_are_damaged(damage: str, sqlite: str) -> None:
    path = Path(sqlite.removeprefix("sqlite:///"))
    data = path.read_bytes()
    if damage == "not UTF-8":
        change(sqlite, "UPDATE people SET name = CAST(x'ff00fe' AS TEXT) WHERE id = -4")
    else:
        path.write_bytes(
            {"foreign": b"no database" * 999, "cut off": data[:5000], "damaged": data[:4096] + b"\xff" * 8192}[damage]
        )
    with contextlib.closing(SQLDataset(sqlite, QUERY, key="id")) as dataset, pytest.raises(CorruptSource):
        list(dataset)


def test_a_duckdb_file_that_is_damaged(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "a.db").write_bytes(b"x" * 10_000)
    dataset = SQLDataset(f"duckdb:///{tmp_path / 'a.db'}", QUERY, key="id")
    with contextlib.closing(dataset), pytest.raises(CorruptSource, match=r"a\.db"):
        len(dataset)


# SQLite itself does not find columns of a subquery that are called "true" or "false".
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda name: name.lower() not in ("true", "false")
)


@given(NAMES, st.integers(0, 9))
def test_names_cannot_inject_sql(name: str, value: int) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        query = Query(Sqlite(Address("sqlite:///a.db")), f"SELECT {value} AS {quoted(name)}", name, None, None)
        statement = query.select([name], by_key=True, limit=3)
        assert database.execute(statement).fetchall() == [(value,)]


ANY = st.one_of(
    st.lists(st.integers()),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.text()),
    st.lists(st.binary()),
    st.lists(st.floats(allow_nan=False)),
    st.lists(st.one_of(st.integers(), st.text())),
    st.lists(st.uuids()),
    st.lists(st.booleans()),
)


@given(ANY, st.data())
def test_keys_are_unchanged_after_pickling(values: list[Any], data: Any) -> None:
    keys = pickle.loads(pickle.dumps(Keys(values)))
    assert len(keys) == len(values)
    indices = data.draw(st.lists(st.integers(0, len(values) - 1))) if values else []
    found = keys.at(indices)
    assert found == [values[index] for index in indices]
    assert [type(key) for key in found] == [type(values[index]) for index in indices]
