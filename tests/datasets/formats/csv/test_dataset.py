from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import CachedDataset, CSVDataset
from feedline.datasets.formats.parquet import table
from feedline.datasets.formats.parquet.mapped import Unpacked
from feedline.datasets.storage.unpacking import Bytes, unpacked_file
from feedline.errors import BadOption, CorruptSource, PerformanceWarning, SourceChanged, SourceError
from feedline.samplers import RandomSampler
from feedline.testing.source import assert_same
from feedline.types import EngineName
from tests.datasets.contract import SourceContract
from tests.sampling import examples

COUNT = 60
PART = 300
"""Bytes of a part, small enough that files have several parts."""
NAMES = ["number", "score", "name", "is_even", "day"]


def samples(count: int = COUNT) -> list[dict[str, Any]]:
    return [
        {
            "number": np.int64(i),
            "score": np.float64(i / 8),
            "name": f'n"ämé, {i}\nof {count}' if i % 3 else "",
            "is_even": np.bool_(i % 2 == 0),
            "day": np.datetime64("2020-01-01") + np.timedelta64(i, "D"),
        }
        for i in range(count)
    ]


def text_of(rows: list[dict[str, Any]], *, header: bool = True, delimiter: str = ",") -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    if header:
        writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


def write(path: Path, text: str) -> Path:
    packs: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(packs.get(path.suffix, bytes)(text.encode()))
    return path


def dataset_of(path: Path, text: str, *arguments: Any, **options: Any) -> CSVDataset:
    return CSVDataset(write(path, text), *arguments, **options)


def numbers(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch.tolist()]


class TestOneFile(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "a.csv", text_of(samples()))

    def make_source(self, **options: Any) -> CSVDataset:
        return CSVDataset(self.path, part_bytes=PART, **options)

    def samples(self) -> list[Any]:
        return samples()


class TestSeveralCompressedFiles(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        for number, ending in ((9, ".csv.gz"), (10, ".csv"), (11, ".csv.xz")):
            write(tmp_path / f"part-{number}{ending}", text_of(samples()[(number - 9) * 20 : (number - 8) * 20]))
        self.folder = tmp_path

    def make_source(self, **options: Any) -> CSVDataset:
        return CSVDataset(self.folder, ("name", "number"), part_bytes=PART, **options)

    def samples(self) -> list[Any]:
        return [(sample["name"], sample["number"]) for sample in samples()]


def test_unpacked_parts_in_a_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", text_of(samples()))
    for _ in range(2):
        dataset = CSVDataset(path, part_bytes=PART, cache=tmp_path / "unpacked", cache_bytes=0)
        for index, sample in enumerate(samples()):
            assert_same(dataset[index], sample)


def test_types_are_inferred_from_all_cells_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "a,b,c,d,e,f\n" + "1,1,,true,2020-01-01,1\n" * 50)
    write(tmp_path / "2.csv", "a,b,c,d,e,f\n" + "2,2,,0,2020-01-01,1\n" * 50 + "0.5,x,,1,2020-01-01 10:00:00,\n")
    dataset = CSVDataset(tmp_path, part_bytes=100)
    assert dataset[0] == {
        "a": np.float64(1),
        "b": "1",
        "c": "",
        "d": np.True_,
        "e": np.datetime64("2020-01-01T00:00:00", "s"),
        "f": np.int64(1),
    }
    assert dataset[100]["f"] is None  # the type of a value does not depend on its neighbours
    assert type(dataset[0]["f"]) is np.int64
    assert "'a': float64[]" in repr(dataset)
    assert dataset.column_types["b"] == pa.string()


CELLS = (
    *("", "0", "1", "17", "01", "true", "False", "0.5", "99999999999999999999", "x"),
    *("1500-01-01", "2020-01-01", "12:30", "2020-01-01 10:00", "2020-01-01T10:00:00.5"),
    *("2020-01-01T10:00:00Z", "2020-01-01T10:00:00.5Z", "2020-01-01T10:00:00+01:00"),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(200))
@given(cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=4))
@example(cells=["1", "true"])
@example(cells=["17", "true"])
@example(cells=["1500-01-01", "2020-01-01T10:00:00.5"])
@example(cells=["2020-01-01T10:00:00Z", "2020-01-01T10:00:00.5Z"])
def test_types_do_not_depend_on_where_parts_are_cut(cells: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.csv"), "x,y\n" + "".join(f"{cell},1\n" for cell in cells))
        whole, cut = CSVDataset(path, "x"), CSVDataset(path, "x", part_bytes=1)
        assert cut.column_types == whole.column_types
        assert [str(value) for value in cut] == [str(value) for value in whole]


def test_explicit_types(tmp_path: Path) -> None:
    text = "x,y,z\n1,2,3\n4,,6\n"
    dataset = dataset_of(tmp_path / "a.csv", text, types={"x": "float32", "y": pa.float64(), "z": "string"})
    assert dataset[0] == {"x": 1, "y": 2, "z": "3"}
    assert [type(value) for value in dataset[1].values()] == [np.float32, np.float64, str]
    assert np.isnan(dataset[1]["y"])
    batch = next(iter(feedline.Loader(dataset, 2)))
    assert batch["x"].dtype == np.float32


def test_types_as_numpy_dtypes_and_python_types(tmp_path: Path) -> None:
    kinds = {"x": np.float32, "y": float, "z": str, "i": np.dtype("i2"), "b": bool}
    dataset = dataset_of(tmp_path / "a.csv", "x,y,z,i,b\n1,2,3,4,1\n", types=kinds)
    assert [type(value) for value in dataset[0].values()] == [np.float32, np.float64, str, np.int16, np.bool_]


def test_files_without_a_header_row(tmp_path: Path) -> None:
    text = text_of(samples(), header=False, delimiter="\t")
    dataset = dataset_of(tmp_path / "a.tsv", text, "number", columns=NAMES, part_bytes=PART)
    assert [int(number) for number in dataset] == list(range(COUNT))
    other = dataset_of(tmp_path / "a.csv", text.replace("\t", "|"), "number", columns=NAMES, delimiter="|")
    assert len(other) == COUNT


def test_a_byte_order_mark_as_spreadsheets_write_it(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "a.csv", "\ufeffx;y\r\n1;2,5\r\n", delimiter=";")
    assert dataset[0] == {"x": 1, "y": "2,5"}


@pytest.mark.parametrize("size", [1, 1000])
def test_a_byte_order_mark_before_a_quote(size: int, tmp_path: Path) -> None:
    text = '\ufeff"x\ny",2\n"x\nz",3\n'
    dataset = dataset_of(tmp_path / "a.csv", text, columns=["a", "b"], part_bytes=size)
    assert list(dataset) == [{"a": "x\ny", "b": 2}, {"a": "x\nz", "b": 3}]
    assert list(dataset_of(tmp_path / "b.csv", text, part_bytes=size)) == [{"x\ny": "x\nz", "2": 3}]


def test_the_repr_reads_nothing(tmp_path: Path) -> None:
    assert repr(CSVDataset(tmp_path / "missing.csv")).startswith("CSVDataset(")
    dataset = dataset_of(tmp_path / "a.csv", "x\n1\n")
    assert "not read yet" in repr(dataset)
    assert len(dataset) == 1
    assert repr(dataset) == "CSVDataset(1 samples of {'x': int64[]})"


def test_a_file_with_only_a_header_has_no_samples(tmp_path: Path) -> None:
    assert len(dataset_of(tmp_path / "a.csv", "x,y\n")) == 0


def test_filters(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", text_of(samples()[:30]))
    write(tmp_path / "2.csv", text_of(samples()[30:]))
    dataset = CSVDataset(tmp_path, "number", filters=[("is_even", "==", True), ("score", ">", 3)], part_bytes=PART)
    assert [int(number) for number in dataset] == list(range(26, COUNT, 2))
    with pytest.raises(BadOption, match="nothing"):
        len(CSVDataset(tmp_path, filters=[("nothing", "==", 1)]))


@pytest.mark.sample(5)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("thread", 2), ("process", 2)])
def test_a_stream_is_split_among_workers_and_resumed(
    ending: str, engine: EngineName, workers: int, tmp_path: Path
) -> None:
    stream = dataset_of(tmp_path / f"a{ending}", text_of(samples()), "number", part_bytes=PART).stream()
    loader = feedline.Loader(stream, 8, workers=workers, engine=engine)
    assert numbers(loader) == list(range(COUNT))
    batches = iter(loader)
    before = [next(batches), next(batches)]
    other = feedline.Loader(stream, 8, workers=1 if workers == 0 else 0)
    other.load_state_dict(loader.state_dict())
    assert numbers(before) + numbers(other) == list(range(COUNT))


def test_a_shuffled_stream(tmp_path: Path) -> None:
    stream = dataset_of(tmp_path / "a.csv", text_of(samples()), "number", part_bytes=PART).stream(shuffle=True, seed=3)
    found = numbers(feedline.Loader(stream, 8))
    assert sorted(found) == list(range(COUNT)) != found


def test_a_sequential_pass_unpacks_a_compressed_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    dataset = dataset_of(tmp_path / "a.csv.gz", text_of(samples()), "number", part_bytes=PART, cache_bytes=0)
    assert len(dataset) == COUNT

    def counted(path: str, packing: str) -> Bytes:
        opened.append(1)
        return unpacked_file(path, packing)

    monkeypatch.setattr("feedline.datasets.formats.csv.dataset.unpacked_file", counted)
    assert len(dataset.row_group_sizes) > 3
    assert [int(number) for number in dataset.stream()] == list(range(COUNT))
    assert len(opened) == 1
    dataset.close()
    unpacked = CSVDataset(tmp_path / "a.csv.gz", "number", part_bytes=PART, cache_bytes=0, cache=tmp_path / "u")
    assert len(unpacked) == COUNT
    opened.clear()
    assert sorted(int(unpacked[index]) for index in RandomSampler(unpacked, seed=1)) == list(range(COUNT))
    assert len(opened) == 1
    unpacked.close()


def test_unpacked_parts_of_a_compressed_file_are_not_mapped_for_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv.gz", text_of(samples()))
    mapped = []
    columns = Unpacked.columns

    def counted(self: Unpacked, file: Any, number: int, *rest: Any) -> Any:
        mapped.append(number)
        return columns(self, file, number, *rest)

    monkeypatch.setattr(Unpacked, "columns", counted)
    for _ in range(2):
        mapped.clear()
        dataset = CSVDataset(path, "number", part_bytes=PART, cache=tmp_path / "u")
        assert [int(number) for number in dataset] == list(range(COUNT))
        assert len(mapped) < 2 * len(dataset.row_group_sizes)
        dataset.close()


def test_random_order_in_a_compressed_file_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LATEST_S", 0.0)
    dataset = dataset_of(tmp_path / "a.csv.gz", text_of(samples(300)), "number", part_bytes=2000, cache_bytes=0)
    with pytest.warns(PerformanceWarning, match=r"a\.csv\.gz' is compressed.*cache="):
        list(map(dataset.__getitem__, RandomSampler(dataset, seed=1)))
    dataset.close()


def test_parts_unpacked_with_other_types_are_not_reused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x\n1\n2\n")
    for kind in ("int64", "float32", "string"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert str(CSVDataset(path, "x", types={"x": kind}, cache=tmp_path / "u")[1]) in ("2", "2.0")
    assert CSVDataset(path, "x", types={"x": "string"}, cache=tmp_path / "u")[1] == "2"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {}, r"a\.csv', row 3: Expected 2 columns, got 1"),
        ("a,b\n" + "1,2\n" * 200 + '3,"x\ny",4\n', {"part_bytes": 100}, r"row 202: Expected 2 columns, got 3"),
        ("1,2\n3,4\n", {"columns": ["x"]}, "row 1: Expected 1 columns"),
        ("a,b\n" + "1,2\n" * 99 + "3,x\n", {"types": {"b": "int64"}, "part_bytes": 50}, r"row 101, column 'b'.*'x'"),
        ("a\n300\n", {"types": {"a": "int8"}}, r"row 2, column 'a'.*300.*types="),
        ('a,b\n1,2\n3,"x\n', {}, r"a quote that is opened in row 3 .* is never closed"),
        ("", {}, "is empty"),
        ("a\0b,c\n1,2\n", {}, "the header contains zero bytes"),
        ("a,a\n1,2\n", {}, "several columns 'a'"),
        ("a,b\n1,2\n", {"types": {"z": "int8"}}, r"types= names 'z', but .*\['a', 'b'\]"),
        ("a,b\n1,2\n", {"fields": "z"}, "'z', but .* 'a', 'b'"),
    ],
)
def test_errors_name_file_and_row(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "a.csv", text, **options)
    with pytest.raises((SourceError, BadOption), match=message) as raised:
        len(dataset)
    assert "a.csv" in str(raised.value)


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,\xe9\n")
    with pytest.raises(CorruptSource, match=r"row 3, column 'y'.*not in UTF-8.*'binary'") as raised:
        len(CSVDataset(tmp_path / "a.csv"))
    assert "'string'" not in str(raised.value)
    (tmp_path / "u.csv").write_bytes("x,y\n1,a\n".encode("utf-16"))
    with pytest.raises(CorruptSource, match=r"u\.csv' is in UTF-16.*iconv"):
        len(CSVDataset(tmp_path / "u.csv"))
    assert CSVDataset(tmp_path / "a.csv", "y", types={"y": "binary"})[1] == b"\xe9"


@pytest.mark.parametrize(
    "options",
    [
        {"types": ["x"]},
        {"types": {"x": "number"}},
        {"types": {"x": 3}},
        {"columns": "x"},
        {"columns": ["x", "x"]},
        {"columns": []},
        {"delimiter": ",,"},
        {"delimiter": '"'},
        {"part_bytes": 0},
        {"cache": 3},
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        CSVDataset("a.csv", **options)


@pytest.mark.parametrize("ending", [".csv.gz", ".csv.bz2", ".csv.xz"])
def test_damaged_compressed_files(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{ending}", text_of(samples()))
    content = path.read_bytes()
    for damaged in (
        content[:-9],
        content[: len(content) // 2],
        content[:60] + bytes([content[60] ^ 255]) + content[61:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptSource, match=r"a\.csv"):
            len(CSVDataset(path))


def test_a_changed_file_is_detected(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "a.csv", text_of(samples()), "number", part_bytes=PART)
    assert dataset[0] == 0
    write(tmp_path / "a.csv", text_of(samples()[1:]))
    os.utime(tmp_path / "a.csv", ns=(0, 12345))
    with pytest.raises(SourceChanged):
        dataset[COUNT - 1]


def test_files_with_different_columns_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "x,y\n1,2\n")
    write(tmp_path / "2.csv", "x,z\n1,2\n")
    with pytest.raises(SourceError, match=r"2\.csv' has no column 'y'"):
        len(CSVDataset(tmp_path))
    assert [int(x) for x in CSVDataset(tmp_path, "x")] == [1, 1]


def test_a_copy_does_not_read_the_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(tmp_path / "a.csv", text_of(samples()), part_bytes=PART)
    assert len(dataset) == COUNT
    copy = pickle.loads(pickle.dumps(dataset))
    monkeypatch.setattr(CSVDataset, "_schema_and_counts", None)
    assert len(copy) == COUNT
    assert copy[COUNT - 1]["number"] == COUNT - 1


def test_a_cache_around_it_detects_other_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x\n1\n2\n")

    def cached(kind: str) -> Any:
        dataset = CachedDataset(CSVDataset(path, "x", types={"x": kind}), disk=tmp_path / "cache")
        sample = dataset[1]
        dataset.close()
        return sample

    assert type(cached("int64")) is type(cached("int64")) is np.int64
    with pytest.warns(PerformanceWarning):
        assert type(cached("float32")) is np.float32
