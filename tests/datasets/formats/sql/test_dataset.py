from __future__ import annotations

import contextlib
import pickle
import sqlite3
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.datasets import SQLDataset
from feedline.datasets.formats.sql.dataset import Keys
from feedline.datasets.formats.sql.query import repeated
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.source import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.sql.people import COUNT, make_duckdb, make_postgres, make_sqlite, samples

pytestmark = pytest.mark.sample(4)

QUERY = "SELECT * FROM people"


class _Contract(SourceContract):
    address: str

    def make_source(self, **options: Any) -> SQLDataset:
        return SQLDataset(self.address, QUERY, key="id", **options)

    def samples(self) -> list[Any]:
        return samples()


class TestSqlite(_Contract):
    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.address = make_sqlite(tmp_path / "people.db")


class TestDuckDB(_Contract):
    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        pytest.importorskip("duckdb")
        self.address = make_duckdb(tmp_path / "people.duckdb")


class TestPostgres(_Contract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres: Any) -> None:
        self.address = make_postgres(postgres)


PLACEHOLDERS = {"sqlite": ("?", ":low"), "duckdb": ("?", "$low"), "postgres": ("%s", "%(low)s")}


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "sqlite":
        return make_sqlite(tmp_path / "people.db")
    if kind == "duckdb":
        pytest.importorskip("duckdb")
        return make_duckdb(tmp_path / "people.duckdb")
    return make_postgres(request.getfixturevalue("postgres"))


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return make_sqlite(tmp_path / "people.db")


def change(sqlite: str, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as database, database:
        database.execute(statement)


def test_parameters_of_both_kinds(kind: str, address: str) -> None:
    kept = [sample for sample in samples() if sample["id"] >= 20]
    for mark, parameters in zip(PLACEHOLDERS[kind], ([20], {"low": 20}), strict=True):
        dataset = SQLDataset(address, f"{QUERY} WHERE id >= {mark}", key="id", parameters=parameters)
        assert_same(dataset.__getitems__(range(len(dataset))), kept)
        dataset.close()


def test_parameters_cannot_inject_sql(kind: str, address: str) -> None:
    for name in ("x' OR '1'='1", "'; DELETE FROM people; --", "%s", "?", ":low"):
        mark = PLACEHOLDERS[kind][0]
        dataset = SQLDataset(address, f"{QUERY} WHERE name = {mark}", key="id", parameters=[name])
        assert len(dataset) == 0
        dataset.close()
    dataset = SQLDataset(address, QUERY, key="id")
    assert len(dataset) == COUNT
    dataset.close()


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
        dataset._ask(lambda connection: dataset.database.rows(connection, statement, None), "trying")
    dataset.close()


def test_column_names_that_need_quotes(address: str) -> None:
    dataset = SQLDataset(address, 'SELECT id AS "the ""id""", name AS "größe; --" FROM people', key='the "id"')
    assert dataset[0] == {'the "id"': -10, "größe; --": samples()[0]["name"]}
    dataset.close()


def test_samples_have_the_form_of_fields(address: str) -> None:
    for fields, expected in (
        ("height", 0.75),
        (("id", "height"), (-4, 0.75)),
        (["id"], {"id": -4}),
        ({"h": "height"}, {"h": 0.75}),
    ):
        dataset = SQLDataset(address, QUERY, key="id", fields=fields)
        assert_same(dataset[3], expected)
        dataset.close()


def test_batches_equal_those_of_torch(address: str) -> None:
    dataset: Any = SQLDataset(address, QUERY, key="id", fields=["id", "height", "name", "photo"])
    assert_same(dataset.read_columns(np.array([2, 1]))["id"], np.array([-6, -8]))
    expected = torch.utils.data.DataLoader(dataset, 7)
    for found, batch in zip(feedline.DataLoader(dataset, 7, num_workers=2), expected, strict=True):
        assert torch.equal(found["id"], batch["id"])
        assert torch.equal(found["height"], batch["height"])
        assert (found["name"], found["photo"]) == (batch["name"], batch["photo"])
        assert (found["id"].dtype, found["height"].dtype) == (batch["id"].dtype, batch["height"].dtype)
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


def test_a_batch_with_more_keys_than_fit_into_a_statement(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    many = 2500
    if kind == "sqlite":
        address = make_sqlite(tmp_path / "many.db", many)
    elif kind == "duckdb":
        pytest.importorskip("duckdb")
        address = make_duckdb(tmp_path / "many.duckdb", many)
    else:
        address = make_postgres(request.getfixturevalue("postgres"), many)
    dataset = SQLDataset(address, QUERY, key="id", fields="id")
    assert dataset.__getitems__(range(many)[::-1]) == [i * 2 - 10 for i in range(many)][::-1]
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
    dataset = SQLDataset(address, "SELECT id / id AS one, id FROM people WHERE id > 0", key="one")
    with pytest.raises(BadOption, match="several rows have the key 1"):
        len(dataset)
    dataset.close()
    dataset = SQLDataset(address, QUERY, key="note")
    with pytest.raises(BadOption, match=r"32 of 40 rows have no key.*'note' is null"):
        len(dataset)
    dataset.close()
    dataset = SQLDataset(address, QUERY, key="colour")
    with pytest.raises(BadOption, match=r"'colour' is not a column.*'name'"):
        len(dataset)
    dataset.close()


def test_rejects_several_columns_of_the_same_name(postgres: Any) -> None:
    address = make_postgres(postgres)  # other databases rename the second column
    dataset = SQLDataset(address, "SELECT a.id AS x, b.id AS x FROM people a JOIN people b USING (id)", key="x")
    with pytest.raises(BadOption, match="several columns 'x'"):
        len(dataset)
    dataset.close()


@pytest.mark.parametrize("query", ["SELECT * FROM nobody", "SELEKT 1", "SELECT * FROM people WHERE id = ?"])
def test_queries_that_fail(sqlite: str, query: str) -> None:
    dataset = SQLDataset(sqlite, query, key="id")
    with pytest.raises(SourceError, match="Check query="):
        len(dataset)
    dataset.close()


@pytest.mark.parametrize(
    "options",
    [{"query": ""}, {"query": 3}, {"query": ";"}, {"key": ""}, {"key": 3}, {"parameters": "abc"}, {"parameters": 3}],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        SQLDataset(**{"address": "sqlite:///a.db", "query": QUERY, "key": "id", **options})


def test_construction_opens_nothing(tmp_path: Path) -> None:
    dataset = SQLDataset(f"sqlite:///{tmp_path}/none.db", QUERY, key="id")
    pickle.loads(pickle.dumps(dataset))
    with pytest.raises(SourceError, match="There is no file"):
        len(dataset)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files(tmp_path: Path, sqlite: str) -> None:
    path = Path(sqlite.removeprefix("sqlite:///"))
    data = path.read_bytes()
    for damaged in (b"not a database at all" * 100, data[:5000], data[:4096] + b"\xff" * (len(data) - 4096)):
        path.write_bytes(damaged)
        dataset = SQLDataset(sqlite, QUERY, key="id")
        with pytest.raises(CorruptSource, match=r"damaged|truncated"):
            list(dataset)
        dataset.close()


def test_a_damaged_duckdb_file(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "a.duckdb").write_bytes(b"x" * 10_000)
    dataset = SQLDataset(f"duckdb:///{tmp_path}/a.duckdb", QUERY, key="id")
    with pytest.raises(CorruptSource, match="damaged"):
        len(dataset)
    dataset.close()


def test_text_that_is_not_utf_8(sqlite: str) -> None:
    change(sqlite, "UPDATE people SET name = CAST(x'ff00fe' AS TEXT) WHERE id = -4")
    dataset = SQLDataset(sqlite, QUERY, key="id")
    assert dataset[4]["id"] == -2
    with pytest.raises(CorruptSource, match=r"CAST\(column AS BLOB\)"):
        dataset[3]
    dataset.close()


def test_no_rows_and_one_row(kind: str, address: str) -> None:
    dataset = SQLDataset(address, f"{QUERY} WHERE id < -1000", key="id")
    assert len(dataset) == 0
    with pytest.raises(IndexError):
        dataset[0]
    dataset.close()
    dataset = SQLDataset(address, f"{QUERY} WHERE id = 0", key="id", fields="id")
    assert list(feedline.Loader(dataset, 4)) == [np.array([0])]
    dataset.close()


def test_large_and_odd_numbers(sqlite: str) -> None:
    change(sqlite, f"INSERT INTO people (id, height) VALUES ({2**63 - 1}, 1e308), ({-(2**63)}, -0.0)")
    dataset = SQLDataset(sqlite, QUERY, key="id", fields=("id", "height"))
    assert dataset[0] == (-(2**63), 0.0)
    assert dataset[-1] == (2**63 - 1, 1e308)
    dataset.close()


def test_an_absolute_path_with_special_characters(tmp_path: Path) -> None:
    folder = tmp_path / "päth %41 with spaces"
    folder.mkdir()
    make_sqlite(folder / "a#b?c.db")
    name = str(folder / "a#b?c.db").replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    dataset = SQLDataset(f"sqlite:///{name}", QUERY, key="id")
    assert len(dataset) == COUNT
    dataset.close()


def test_keys_are_sent_to_workers_but_not_connections(sqlite: str) -> None:
    dataset = SQLDataset(sqlite, QUERY, key="id")
    assert len(dataset) == COUNT
    other = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    change(sqlite, "INSERT INTO people (id) VALUES (-1000)")
    assert len(other) == COUNT
    assert other[0]["id"] == -10
    other.close()


def test_a_deleted_dataset_closes_its_connections(address: str) -> None:
    """Drivers warn about connections that were not closed, and warnings are errors here."""
    dataset = SQLDataset(address, QUERY, key="id", fields="id")
    assert dataset[0] == -10
    connection = dataset._session.get()._connection
    assert connection is not None
    del dataset
    with pytest.raises(Exception, match=r"(?i)closed"):
        connection.execute("SELECT 1")


def test_each_thread_has_one_connection(sqlite: str) -> None:
    dataset = SQLDataset(sqlite, QUERY, key="id", fields="id")
    loader = feedline.Loader(dataset, 4, workers=3, engine="thread", shuffle=True, seed=0)
    assert sorted(x for batch in loader for x in batch.tolist()) == [i * 2 - 10 for i in range(COUNT)]
    dataset.close()


@pytest.mark.parametrize("count", [899, 900, 950, 5000])
def test_many_parameters(sqlite: str, count: int) -> None:
    if count > 990 and sqlite3.sqlite_version_info < (3, 32):
        pytest.skip("this SQLite takes 999 values in a statement")
    query = f"{QUERY} WHERE id IN ({', '.join('?' * count)})"
    dataset = SQLDataset(sqlite, query, key="id", parameters=list(range(count)), fields="id")
    assert dataset.__getitems__([1, 0]) == [2, 0]
    dataset.close()


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


def test_keys_are_stored_compactly() -> None:
    count = 10_000
    assert len(pickle.dumps(Keys(range(count)))) < 9 * count
    names = [f"name {number:06d}" for number in range(count)]
    listed = sys.getsizeof(names) + sum(map(sys.getsizeof, names))
    assert len(pickle.dumps(Keys(names))) < listed / 3


@pytest.mark.parametrize(
    ("values", "found"),
    [([1, 2, 3], None), ([1, 2, 1], 1), (["a", "A"], None), ([uuid.UUID(int=1)] * 2, uuid.UUID(int=1)), ([], None)],
)
def test_repeated_finds_a_duplicate_key(values: list[Any], found: Any) -> None:
    assert repeated(values) == found
