"""What a newcomer may point `feedline inspect` at: something useful or one clear sentence, never a traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedline
from feedline import datasets
from feedline.cli.main import main
from feedline.datasets import CachedDataset
from feedline.errors import CorruptSource, SourceError
from feedline.packing.contents import Contents, look


def types(contents: Contents) -> dict[str, str]:
    return {field.name: field.type for field in contents.fields}


def loaded(contents: Contents) -> list[Any]:
    """Run the line that is shown, without workers, and return all batches."""
    space: dict[str, Any] = {"feedline": feedline, "numpy": np}
    exec(contents.line.replace(", workers=4", ""), space)
    loader = space["loader"]
    batches = list(loader)
    if callable(close := getattr(loader.dataset, "close", None)):
        close()
    return batches


# -- tables in plain text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "separator"), [("a.csv", ","), ("a.tsv", "\t"), ("german.csv", ";"), ("big.CSV", ",")]
)
def test_tables_of_values(name: str, separator: str, tmp_path: Path) -> None:
    rows: list[list[Any]] = [
        ["name", "size", "count", "note"],
        *([f"n{number}", number / 2, number, ""] for number in range(20)),
    ]
    rows[5][3] = "odd"
    (tmp_path / name).write_text("\n".join(separator.join(map(str, row)) for row in rows))
    contents = look(tmp_path / name)
    assert (contents.kind, contents.count) == ("CSV table", 20)
    assert types(contents) == {"name": "str", "size": "float64", "count": "int64", "note": "str"}
    assert contents.fields[3].note == "empty in 19 rows"
    assert [sample["name"] for sample in contents.take(2)] == ["n0", "n10"]


def test_compressed_tables_and_patterns(tmp_path: Path) -> None:
    text = b"day,is_new,n\n2020-01-01,true,1\n2020-01-02,false,NA\n"
    (tmp_path / "a1.csv").write_bytes(text)
    (tmp_path / "a2.csv").write_bytes(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text))
    for path, count, files in ((tmp_path / "b.csv.gz", 2, 1), (tmp_path / "a*.csv", 4, 2)):
        contents = look(path)
        assert (contents.count, contents.file_count) == (count, files)
        assert types(contents) == {"day": "date32[day]", "is_new": "bool", "n": "int64"}
        assert contents.fields[2].note == f"empty in {files} rows"
        assert contents.take(1) == [{"day": np.datetime64("2020-01-01"), "is_new": np.True_, "n": 1}]
        assert sum(map(len, loaded(contents))) == count


def test_a_table_with_quotes_and_a_mark_of_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeffname,text\nä,"x, y\nz"\n'.encode())
    contents = look(tmp_path / "a.csv")
    assert contents.take(1) == [{"name": "ä", "text": "x, y\nz"}]


@pytest.mark.parametrize(
    ("content", "kind", "count", "fields"),
    [
        (b'{"a": 1, "b": "x"}\n{"a": 2}\n\n{"a": 3}\n', "JSON lines", 3, {"a": "int", "b": "str"}),
        (b'{"a": 1}\n[1, 2]\n"x"', "JSON lines", 3, {"a": "int", "value": "list or str"}),
        (b'[{"a": 1}, {"a": 2.5}]', "JSON list", 2, {"a": "int or float"}),
        (b'[\n  {"a": 1},\n  {"a": 2}\n]\n', "JSON list", 2, {"a": "int"}),
        (b'{\n  "a": [1]\n}', "JSON document", 1, {"a": "list"}),
        (b"[]", "JSON list", 0, {}),
    ],
)
def test_json(content: bytes, kind: str, count: int, fields: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    contents = look(tmp_path / "a.jsonl")
    assert (contents.kind, contents.count, types(contents)) == (kind, count, fields)
    assert len(contents.take(3)) == count


# -- arrays ------------------------------------------------------------------------------------------------------------


class Trap:
    def __reduce__(self) -> Any:
        return os._exit, (13,)


@pytest.mark.parametrize("form", ["npy", "npz", "folder"])
def test_arrays_of_objects_are_not_unpickled(form: str, tmp_path: Path) -> None:
    objects = np.array([Trap(), "x", None], object)
    if form == "npy":
        np.save(tmp_path / "o.npy", objects, allow_pickle=True)
        contents = look(tmp_path / "o.npy")
    elif form == "npz":
        np.savez(tmp_path / "a.npz", o=objects, x=np.arange(3))
        contents = look(tmp_path / "a.npz")
    else:
        np.save(tmp_path / "o.npy", objects, allow_pickle=True)
        np.save(tmp_path / "x.npy", np.arange(3))
        contents = look(tmp_path)
    assert contents.count == 3
    assert types(contents)["o"] == "object[]"
    assert "runs whatever code is in the file" in contents.details["not read"]
    assert contents.line == ""
    assert [list(sample) for sample in contents.take(2)] == ([] if form == "npy" else [["x"], ["x"]])


def test_structured_arrays(tmp_path: Path) -> None:
    array = np.zeros(5, [("x", "f4", (2,)), ("y", "i8")])
    array["y"] = np.arange(5)
    np.save(tmp_path / "s.npy", array)
    contents = look(tmp_path / "s.npy")
    assert types(contents) == {"s": "(x: float32[2], y: int64)[]"}
    assert contents.take(1)[0]["s"]["y"] == 0
    assert sorted(loaded(contents)[0]["y"].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_arrays(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4))
    contents = look(tmp_path / "a.npz")
    assert (contents.count, types(contents)) == (4, {"x": "float64[2]", "y": "int64[]"})
    assert contents.take(4)[3]["y"] == 3
    assert sorted(loaded(contents)[0]["y"].tolist()) == [0, 1, 2, 3]


def test_arrays_of_different_lengths(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    np.save(tmp_path / "b.npy", np.arange(3))
    contents = look(tmp_path)
    assert (contents.count, contents.line) == (None, "")
    assert "different numbers of rows" in contents.details["lengths"]


# -- what feedline keeps -----------------------------------------------------------------------------------------------


def test_precomputed_samples(tmp_path: Path) -> None:
    samples = [{"x": np.full((2, 3), number), "y": number} for number in range(10)]
    feedline.precompute(samples, tmp_path, progress=False).close()
    for path in (tmp_path, tmp_path / "samples.feedline"):
        contents = look(path)
        assert (contents.kind, contents.count) == ("precomputed samples", 10)
        assert types(contents) == {"x": "int64[2, 3]", "y": "int"}
        assert contents.take(2)[1]["y"] == 1
        assert sorted(loaded(contents)[0]["y"].tolist()) == list(range(10))


def test_caches(tmp_path: Path) -> None:
    cached = CachedDataset([(number, "text") for number in range(10)], disk=tmp_path)
    assert [cached[number][0] for number in (3, 7)] == [3, 7]
    cached.close()
    contents = look(tmp_path)
    assert contents.kind.startswith("cache of samples")
    assert contents.details["kept"] == "2 of 10 samples"
    assert types(contents) == {"0": "int", "1": "str"}
    assert [sample["0"] for sample in contents.take(5)] == [3, 7]
    assert contents.line == ""


def test_pickled_samples_of_a_cache_are_not_read(tmp_path: Path) -> None:
    cached = CachedDataset([{"x": {1, 2}}, {"x": 3}], disk=tmp_path, pickle=True)
    assert cached[0] == {"x": {1, 2}}
    cached.close()
    contents = look(tmp_path)
    assert "not read" in contents.details["pickled"]
    assert contents.take(3) == []


def test_a_damaged_cache(tmp_path: Path) -> None:
    CachedDataset([1], disk=tmp_path)[0]
    (tmp_path / "samples.feedline").write_bytes(b"FDLVAULT" + bytes(5000))
    with pytest.raises(CorruptSource, match="damaged, or of another version"):
        look(tmp_path)


# -- folders -----------------------------------------------------------------------------------------------------------


def picture(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def test_pictures_of_different_sizes(tmp_path: Path) -> None:
    for number, size in enumerate([(10, 20), (10, 20), (30, 15)]):
        picture(tmp_path / "ab"[number % 2] / f"{number}.png", size)
    contents = look(tmp_path)
    assert contents.details["size of pictures"].startswith(
        "2 sizes from 10 x 15 to 30 x 20 (width x height), most often 10 x 20; they have to be made equal"
    )
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    assert "1 of 4 pictures" in look(tmp_path).details["not readable"]


def test_pictures_without_classes(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"{number}.png", (5, 4))
    contents = look(tmp_path)
    assert (contents.kind, contents.count) == ("folder of pictures", 3)
    assert contents.details["size of pictures"] == "all 5 x 4 (width x height)"
    assert loaded(contents)[0].shape == (3, 4, 5, 3)


def test_pictures_in_some_folders_only(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", (5, 4))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_text("x")
    contents = look(tmp_path)
    assert (contents.kind, contents.count) == ("folder of files", 2)


def test_a_folder_of_different_things(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3)))
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "read.me").write_text("x")
    picture(tmp_path / "deep" / "er" / "1.png", (5, 4))
    with lmdb.open(str(tmp_path / "train.lmdb")) as database, database.begin(write=True) as transaction:
        transaction.put(b"a", b"1")
    with closing(sqlite3.connect(tmp_path / "a.db")) as tables, tables:
        tables.execute("CREATE TABLE t (x)")
    contents = look(tmp_path)
    assert (contents.kind, contents.count, contents.take(3)) == ("folder of different things", None, [])
    stores = contents.details["stores"]
    assert stores["x.npy"] == ".npy, 5 samples"
    assert stores["table.csv"] == "CSV table, 1 samples"
    assert stores["train.lmdb"] == "LMDB, 1 samples"
    assert stores["a.db"] == "SQLite database, 0 samples"
    assert stores["broken.parquet"].startswith("cannot be read")
    assert contents.details["suffixes"][".png"] == 1


@pytest.mark.parametrize("names", [(), (".hidden",)])
def test_empty_folders(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=r"is empty: there are no files in it(, but for hidden ones)?\.$"):
        look(tmp_path)


# -- tar, Parquet, Arrow, SQLite, HDF5 ---------------------------------------------------------------------------------


def shard(path: Path, count: int, mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # a mode, as text
        for number in range(count):
            for field in ("txt", "cls", "json")[: 3 if number else 2]:
                info = tarfile.TarInfo(f"{number:06d}.{field}")
                info.size = 1
                archive.addfile(info, io.BytesIO(b"1"))


def test_shards_say_how_many_members_a_sample_has(tmp_path: Path) -> None:
    for number in range(2):
        shard(tmp_path / f"{number}.tar", 4)
    assert look(tmp_path / "0.tar").details["members per sample"] == "2 to 3"
    contents = look(tmp_path)
    assert (contents.count, contents.details["members per sample"]) == (8, "2 to 3")
    assert contents.details["shards"] == "2, of 4 to 4 samples"


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_archives_without_samples(format_: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=format_) as archive:
        pass
    assert look(tmp_path / "a.tar").count == 0
    (tmp_path / "README").write_text("x")
    with tarfile.open(tmp_path / "b.tar", "w", format=format_) as archive:
        archive.add(tmp_path / "README", "README")
    contents = look(tmp_path / "b.tar")
    assert (contents.count, contents.line) == (0, "")
    assert "names are not KEY.FIELD" in contents.details["other members"]


def test_a_folder_of_parquet_files_with_folders(tmp_path: Path) -> None:
    for year in (1, 2):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"x": [year, year]}), tmp_path / f"year={year}" / "0.parquet")
    (tmp_path / "_SUCCESS").touch()
    contents = look(tmp_path)
    assert (contents.kind, contents.count) == ("folder of Parquet shards", 4)
    assert sorted(loaded(contents)[0]["x"].tolist()) == [1, 1, 2, 2]


def test_arrow_streams(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, 3]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, 2)
    contents = look(tmp_path / "a.arrow")
    assert (contents.kind, contents.count, contents.details) == ("Arrow stream", 3, {"record batches": 2})
    assert sorted(loaded(contents)[0]["x"].tolist()) == [1, 2, 3]


@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY", "id INTEGER"])
def test_a_database_of_one_table(key: str, tmp_path: Path) -> None:
    path = tmp_path / "odd %23 na?me.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f'CREATE TABLE "odd ""name" ({key}, name TEXT, photo BLOB)')
        database.executemany('INSERT INTO "odd ""name" VALUES (?, ?, ?)', [(n, f"n{n}", b"x") for n in range(30)])
    before = path.read_bytes()
    contents = look(path)
    assert (contents.kind, contents.count) == ("SQLite database", 30)
    assert types(contents) == {"id": "integer", "name": "text", "photo": "blob"}
    assert contents.take(2)[1] == {"id": 15, "name": "n15", "photo": b"x"}
    assert sorted(loaded(contents)[0]["id"].tolist()) == list(range(30))
    assert path.read_bytes() == before


def test_a_database_of_several_tables(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE small (x)")
        database.execute("CREATE TABLE large (a, b, PRIMARY KEY (a, b)) WITHOUT ROWID")
        database.execute("CREATE VIEW seen AS SELECT * FROM small")
        database.executemany("INSERT INTO large VALUES (?, ?)", [(n, n) for n in range(1500)])
    contents = look(tmp_path / "a.db")
    assert contents.details == {"tables": {"large": "1,500 rows", "small": "0 rows"}, "samples are of": "large"}
    assert types(contents) == {"large.a": "any", "large.b": "any", "small.x": "any"}
    assert (contents.count, contents.line) == (None, "")
    assert contents.take(2) == [{"a": 0, "b": 0}, {"a": 750, "b": 750}]


def test_groups_of_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/x"], file["a/y"], file["b/x"], file["single"] = np.zeros((5, 3)), np.arange(5), np.zeros(7), 3
        file["a/both"] = np.zeros(5, [("u", "f4"), ("v", "i4")])
        file["nothing"] = h5py.Empty("f4")
        file["nowhere"] = h5py.SoftLink("/gone")
        file.create_group("empty")
    contents = look(tmp_path / "a.h5")
    assert contents.count is None
    assert types(contents)["a/both"] == "(u: float32, v: int32)[]"
    assert contents.details["rows"] == {"5": "a/both, a/x, a/y", "7": "b/x"}
    assert [sample["a/y"] for sample in contents.take(5)] == [0, 1, 2, 3, 4]
    assert sorted(loaded(contents)[0]["a/y"].tolist()) == [0, 1, 2, 3, 4]
    with h5py.File(tmp_path / "b.h5", "w"):
        pass
    assert look(tmp_path / "b.h5").details == {"empty": "there are no datasets in it"}


# -- one clear sentence ------------------------------------------------------------------------------------------------


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("hello.txt", "x")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", b"", "is empty: there is nothing in it"),
        ("empty.csv", b"", "is empty, which no .csv file is"),
        ("ragged.csv", b"a,b\n1,2\n3\n", "row 3: Expected 2 columns, got 1"),
        ("latin.csv", "a\nä\n".encode("latin1"), "row 2, column 'a': .*UTF-8"),
        ("bad.jsonl", b'{"a": 1}\n{"a":\n', "line 2, is no JSON"),
        ("bad.json", b"{oops", "neither JSON with a value on each line nor one document"),
        ("old.feather", b"FEA1" + bytes(100), "version 1 of Feather"),
        ("other.zip", zipped(), "zip archive that holds 'hello.txt' and no arrays"),
        ("table.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "cut off"),
        ("model.pt", pickle.dumps(Trap()), "of no kind that is known"),
        ("torn.db", b"SQLite format 3\0" + bytes(200), "damaged or cut off"),
        ("text.txt", b"hello", "of no kind that is known: HDF5, LMDB, .* SQLite, CSV, JSON lines"),
        ("torn.arrow", b"\xff\xff\xff\xff" + bytes(8), "does not end as an Arrow file or stream does"),
    ],
)
def test_one_clear_sentence(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        look(tmp_path / name).take(3)
    assert str(tmp_path / name) in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="neither a file nor a folder"):
        look(tmp_path / "pipe")
    with pytest.raises(SourceError, match="cannot be read: File name too long"):
        look(tmp_path / ("x" * 1000))


def test_damage_that_is_met_by_samples_only(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(100_000))}), tmp_path / "a.parquet", compression="zstd")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:100] = b"\xff" * 96
    (tmp_path / "a.parquet").write_bytes(content)
    contents = look(tmp_path / "a.parquet")
    with pytest.raises(CorruptSource, match="damaged or cut off"):
        contents.take(3)


def test_names_that_no_terminal_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"x")
    assert main(["inspect", str(folder)]) == 0
    assert "odd\\udcff" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 1


def test_classes_that_are_named_exist() -> None:
    assert all(hasattr(datasets, name) for name in ("ArrayDataset", "SQLDataset", "PrecomputedDataset"))


def test_counts_of_shards_are_those_of_all(tmp_path: Path) -> None:
    for number in range(3):
        shard(tmp_path / f"{number}.tar", 4)
    fields = {field.name: field.stored for field in look(tmp_path).fields}
    assert fields == {"txt": "12 members, 12 bytes", "cls": "12 members, 12 bytes", "json": "9 members, 9 bytes"}
    hdf5 = tmp_path / "h"
    hdf5.mkdir()
    for number in range(3):
        with h5py.File(hdf5 / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=np.arange(10), chunks=(5 + number,))
    assert look(hdf5).fields[0].stored == "30 rows, chunks of 5 in the first of 3 files"
    parquet = tmp_path / "p"
    parquet.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"x": range(10)}), parquet / f"{number}.parquet", row_group_size=5)
    assert look(parquet).details["row groups (first of 2 files)"] == "2, of 5 to 5 rows"


def test_shards_of_one_name_in_several_folders(tmp_path: Path) -> None:
    for place, name in (("a", "x"), ("b", "y")):
        (tmp_path / place).mkdir()
        feather.write_feather(pa.table({name: [1]}), str(tmp_path / place / "0.arrow"))
    assert look(tmp_path).details["differ"] == "the fields of b/0.arrow are not those of a/0.arrow"
    assert look(tmp_path).line == "", "they have no field in common"
    assert look(tmp_path).details["record batches"] == 2


def test_the_type_of_a_field_that_few_samples_have(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(50):
            out = io.BytesIO()
            Image.new("L", (2, 2)).save(out, "BMP" if number == 41 else "PNG")
            info = tarfile.TarInfo(f"{number}.{'bmp' if number == 41 else 'png'}")
            info.size = len(out.getvalue())
            archive.addfile(info, io.BytesIO(out.getvalue()))
    assert types(look(tmp_path / "a.tar")) == {"png": "png", "bmp": "bmp"}


def test_sizes_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file in a tar file, and archives that unpack to a hundred times their size."""
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1MB")
    sparse = tarfile.TarInfo("a.bin")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    (tmp_path / "sparse.tar").write_bytes(sparse.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(CorruptSource, match=r"sparse\.tar.*sparse file, which is not supported"):
        look(tmp_path / "sparse.tar")
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        for name in ("a.bin", "a.x"):
            info = tarfile.TarInfo(name)
            info.size = 600_000
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(
        CorruptSource, match=r"bomb\.tar\.gz: sample '.*a', .*takes 1200000 bytes.*FEEDLINE_MAX_SAMPLE_BYTES"
    ):
        look(tmp_path / "bomb.tar.gz").take(1)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((10, 100_000)))
    contents = look(tmp_path / "bomb.npz")
    assert contents.count == 10
    with pytest.raises(CorruptSource, match=r"'x\.npy' of .*bomb\.npz takes 8000128 bytes.*FEEDLINE_MAX_SAMPLE_BYTES"):
        contents.take(1)


@pytest.mark.parametrize("mode", ["xz", "bz2"])
def test_tar_files_of_every_compression(tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / f"a.tar.{mode}", f"w:{mode}") as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo("a.cls")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"7"))
    contents = look(tmp_path / f"a.tar.{mode}")
    assert (contents.count, contents.take(1)) == (1, [{"cls": 7}])
