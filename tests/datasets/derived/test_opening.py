"""`open_dataset`, `pack` and `inspect` agree on what a path contains."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import feedline
from feedline.datasets import CachedDataset, TarDataset, open_dataset
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.tools.write.inspection import inspect
from tests.datasets.stores import COUNT, MAKERS, hdf5, tar
from tests.tools.write.stores import without_workers


@pytest.mark.parametrize("ending", MAKERS)
def test_shards_of_all_kinds(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "shards"
    for number in range(4):
        place = folder / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        MAKERS[ending](place / f"s-{number}{ending}", number)
    (folder / "about.json").write_text("{}")
    packed = feedline.pack(folder, tmp_path / "out.lmdb", workers=0)
    facts = inspect(str(folder))
    is_stream = facts["form"] == "stream"
    assert (packed.count, facts["samples"]) == (4 * COUNT, None if is_stream else 4 * COUNT)
    assert facts["files"] == 4
    assert packed.left_out == facts["left out"] == 1
    with contextlib.closing(open_dataset(folder)) as dataset:
        assert len(list(dataset)) == 4 * COUNT
    space: dict[str, Any] = {"feedline": feedline}
    exec(without_workers(facts["line"]), space)
    assert sum(len(next(iter(batch.values()))) for batch in space["loader"]) == 4 * COUNT
    space["loader"].dataset.close()


def environment(path: Path) -> None:
    with lmdb.open(str(path), subdir=False, lock=False) as opened, opened.begin(write=True) as transaction:
        transaction.put(b"a", b"1")


def test_stores_that_cannot_be_read_as_one_dataset_are_not_taken_for_samples(tmp_path: Path) -> None:
    for name in ("npz", "lmdb", "mixed"):
        (tmp_path / name).mkdir()
    for number in range(2):
        np.savez(tmp_path / "npz" / f"{number}.npz", x=np.arange(3))
        environment(tmp_path / "lmdb" / f"{number}.lmdb")
    hdf5(tmp_path / "mixed" / "a.h5", 0)
    tar(tmp_path / "mixed" / "b.tar", 0)
    for name in ("npz", "lmdb", "mixed"):
        for act in (open_dataset, inspect, functools.partial(feedline.pack, out=tmp_path / "out.lmdb")):
            with pytest.raises(BadOption, match=r"not read as one dataset.* Name one of them: "):
                act(str(tmp_path / name))
    np.savez(tmp_path / "lmdb" / "0.npz", x=np.arange(3))
    one = tmp_path / "one"
    one.mkdir()
    np.savez(one / "a.npz", x=np.arange(3))
    with pytest.raises(BadOption, match=r"a store, not a sample\. Name one of them: .*one/a\.npz"):
        feedline.pack(one, tmp_path / "out.lmdb", workers=0)


def test_precomputed_samples_are_packed(tmp_path: Path) -> None:
    feedline.precompute([{"x": number} for number in range(5)], tmp_path / "made", workers=0)
    packed = feedline.pack(tmp_path / "made", tmp_path / "out.h5", workers=0)
    assert (packed.count, inspect(str(tmp_path / "made"))["samples"]) == (5, 5)
    with h5py.File(packed.path) as file:
        assert file["x"][:].tolist() == list(range(5))


def test_unknown_formats_and_missing_paths(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"hello")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("a.xyz", "looks like lines of text"),
        ("none", "nothing at"),
        ("pipe", "a device or a pipe"),
    ):
        with pytest.raises(SourceError, match=message):
            open_dataset(tmp_path / name)
    (tmp_path / "a.h5").write_bytes(b"hello")
    with pytest.raises(CorruptSource, match=r"a\.h5"):
        open_dataset(tmp_path / "a.h5")


def test_options_are_passed_on_to_the_source(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4), y=np.arange(4) * 2)
    assert open_dataset(tmp_path / "a.npz", fields=("y", "x"), transform=sum)[3] == 9


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a #1.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute('CREATE TABLE "a ""b" (id INTEGER PRIMARY KEY, x TEXT)')
        database.executemany('INSERT INTO "a ""b" VALUES (?, ?)', [(number, f"n{number}") for number in range(5)])
    with contextlib.closing(open_dataset(path)) as dataset:
        assert (len(dataset), dataset[3]["x"]) == (5, "n3")
    assert inspect(str(path))["samples"] == 5
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    with pytest.raises(BadOption, match=r"the tables 'a \"b', 'other'.*query=.*`feedline pack`"):
        open_dataset(path)
    with contextlib.closing(open_dataset(path, query='SELECT * FROM "a ""b" WHERE id > 2', key="id")) as dataset:
        assert len(dataset) == 2
    path.write_bytes(path.read_bytes()[:100] + bytes(5000))
    with pytest.raises(CorruptSource, match=r"a #1\.db"):
        open_dataset(path)


def test_sqlite_without_a_primary_key(tmp_path: Path) -> None:
    def made(name: str, columns: str) -> Path:
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.execute(f"CREATE TABLE sqlitelike ({columns}")
            database.executemany("INSERT INTO sqlitelike VALUES (?, ?)", [(number, "a") for number in range(5)])
        return tmp_path / name

    path = made("none.db", "x INTEGER, y TEXT)")
    with contextlib.closing(open_dataset(path)) as dataset:
        assert (len(dataset), dataset[3]) == (5, {"rowid": 4, "x": 3, "y": "a"})
    assert inspect(str(path))["samples"] == 5
    for name, columns in (
        ("two.db", "x INTEGER, y TEXT, PRIMARY KEY (x, y))"),
        ("own.db", "rowid INTEGER, y TEXT)"),
        ("without.db", "x INTEGER, y TEXT, PRIMARY KEY (x, y)) WITHOUT ROWID"),
    ):
        with pytest.raises(BadOption, match=r"the tables 'sqlitelike'.*key="):
            open_dataset(made(name, columns))


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    tar(tmp_path / "a{1,2}*.tar", 0)
    with contextlib.closing(open_dataset(tmp_path / "a{1,2}*.tar")) as dataset:
        assert len(dataset) == COUNT


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    feedline.pack([{"x": 1}, {"x": 2}], "~/a.tar", workers=0)
    for dataset in (open_dataset("~/a.tar"), TarDataset("~/*.tar"), TarDataset("~/a.tar", cache="~/index")):
        with contextlib.closing(dataset):
            assert len(dataset) == len(list(dataset.stream())) == 2
    with contextlib.closing(CachedDataset([1, 2], disk="~/samples")) as cached:
        assert cached[0] == 1
    feedline.precompute([1, 2], "~/stored", progress=False, workers=0).close()
    assert {"a.tar", "index", "samples", "stored"} <= {path.name for path in tmp_path.iterdir()}
