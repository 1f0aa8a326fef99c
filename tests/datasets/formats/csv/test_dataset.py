from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import CSVDataset
from feedline.datasets.formats.csv import dataset as module
from feedline.datasets.formats.csv import parsing
from feedline.errors import BadOption, CorruptSource, PerformanceWarning, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.sampling import examples

COUNT = 60
NAMES = ["number", "score", "name", "is_even", "day"]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_ROWS", 7)


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
    return CSVDataset(write(path, text), *arguments, **{"cache": path.parent / "cache", **options})


class TestOneFile(SourceContract):
    takes_fields = True
    notices_damage = False

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "a.csv", text_of(samples()))

    def make_source(self, **options: Any) -> CSVDataset:
        return CSVDataset(self.path, cache=self.path.parent / "cache", **options)

    def samples(self) -> list[Any]:
        return samples()

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[Any]:
        new = samples()[::-1]
        write(self.path, text_of(new))
        return new


class TestSeveralCompressedFilesThatAreNotKept(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        for number, ending in ((9, ".csv.gz"), (10, ".csv"), (11, ".csv.xz")):
            write(tmp_path / f"part-{number}{ending}", text_of(samples()[(number - 9) * 20 : (number - 8) * 20]))
        self.folder = tmp_path

    def make_source(self, **options: Any) -> CSVDataset:
        return CSVDataset(self.folder, ("name", "number"), cache=False, **options)

    def samples(self) -> list[Any]:
        return [(sample["name"], sample["number"]) for sample in samples()]


def test_without_a_folder_to_write_to_it_works(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(PerformanceWarning, match="cannot be kept"):
        assert_same(list(dataset_of(tmp_path / "a.csv", text_of(samples()))), samples())


def test_types_are_inferred_from_all_cells_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "a,b,c,d,e,f\n" + "1,1,,true,2020-01-01,1\n" * 50)
    write(tmp_path / "2.csv", "a,b,c,d,e,f\n" + "2,2,,0,2020-01-01,1\n" * 50 + "0.5,x,,1,2020-01-01 10:00:00,\n")
    dataset = CSVDataset(tmp_path, cache=tmp_path / "cache")
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
    *("", "0", "1", "17", "01", "true", "False", "0.5", "99999999999999999999", "x", " 1 ", "NA", "1e3", '"7"'),
    *("1500-01-01", "2020-01-01", "12:30", "2020-01-01 10:00", "2020-01-01T10:00:00.5"),
    *("2020-01-01T10:00:00Z", "2020-01-01T10:00:00.5Z", "2020-01-01T10:00:00+01:00"),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=4), is_cut=st.booleans())
@example(cells=["1", "true"], is_cut=True)
@example(cells=["17", "true"], is_cut=True)
@example(cells=["1500-01-01", "2020-01-01T10:00:00.5"], is_cut=True)
@example(cells=["2020-01-01T10:00:00Z", "2020-01-01T10:00:00.5Z"], is_cut=True)
def test_types_are_those_that_pyarrow_infers_from_the_whole_file(cells: list[str], is_cut: bool) -> None:
    text = "x,y\n" + "".join(f"{cell},1\n" for cell in cells)
    found = arrow_csv.open_csv(io.BytesIO(text.encode())).schema.field("x").type
    expected = pa.string() if pa.types.is_null(found) else found
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if is_cut:
            patch.setattr(parsing, "LONGEST_ROW", 40)
        assert CSVDataset(write(Path(folder, "a.csv"), text), "x", cache=False).column_types == {"x": expected}


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(
    rows=st.lists(st.lists(st.text(st.sampled_from('ab,;"\n\r é'), max_size=6), min_size=2, max_size=2), max_size=8),
    form=st.sampled_from([("\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
    block=st.integers(60, 200),
)
def test_rows_are_those_of_the_csv_module(rows: list[list[str]], form: tuple[str, Any], block: int) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=form[0], quoting=form[1]).writerows(rows)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "LONGEST_ROW", block)
        path = Path(folder, "a.csv")
        path.write_bytes(text.getvalue().encode())
        types = {"x": "string", "y": "string"}
        assert [list(row) for row in CSVDataset(path, ("x", "y"), columns=types, types=types, cache=False)] == rows


def test_explicit_types(tmp_path: Path) -> None:
    kinds: dict[str, object] = {"x": np.float32, "y": float, "z": str, "i": "int16", "b": bool, "f": pa.float64()}
    dataset = dataset_of(tmp_path / "a.csv", "x,y,z,i,b,f\n1,2,03,4,1,\n", types=kinds)
    expected = [np.float32(1), np.float64(2), "03", np.int16(4), np.True_, np.float64("nan")]
    assert_same(list(dataset[0].values()), expected)
    for kind in ("int64", "float32", "string"):
        assert str(CSVDataset(tmp_path / "a.csv", "i", types={"i": kind}, cache=tmp_path / "cache")[0])[0] == "4"


def test_files_without_a_header_row(tmp_path: Path) -> None:
    text = text_of(samples(), header=False, delimiter="\t")
    dataset = dataset_of(tmp_path / "a.tsv", text, "number", columns=NAMES)
    assert [int(number) for number in dataset] == list(range(COUNT))
    other = dataset_of(tmp_path / "a.csv", text.replace("\t", "|"), "number", columns=NAMES, delimiter="|")
    assert len(other) == COUNT


def test_files_as_spreadsheets_write_them(tmp_path: Path) -> None:
    assert dataset_of(tmp_path / "a.csv", "\ufeffx;y\r\n\r\n1;2,5\r\n", delimiter=";")[0] == {"x": 1, "y": "2,5"}
    text = '\ufeff"x\ny",2\n"x\nz",3'
    dataset = dataset_of(tmp_path / "b.csv", text, columns=["a", "b"])
    assert list(dataset) == [{"a": "x\ny", "b": 2}, {"a": "x\nz", "b": 3}]
    assert list(CSVDataset(tmp_path / "b.csv", cache=False)) == [{"x\ny": "x\nz", "2": 3}]
    assert list(dataset_of(tmp_path / "c.csv", 'size\n5" pipe\n"""d"\n')) == [{"size": '5" pipe'}, {"size": '"d'}]


def test_few_rows(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "a.csv", "x\n1\n")
    assert "a.csv" in repr(dataset)
    assert len(dataset) == 1
    assert repr(dataset) == "CSVDataset(1 samples of {'x': int64[]})"
    assert len(dataset_of(tmp_path / "b.csv", "x,y\n")) == 0


def test_filters(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", text_of(samples()[:30]))
    write(tmp_path / "2.csv", text_of(samples()[30:]))
    dataset = CSVDataset(tmp_path, "number", filters=[("is_even", "==", True), ("score", ">", 3)], cache=False)
    assert [int(number) for number in dataset] == list(range(26, COUNT, 2))
    with pytest.raises(BadOption, match="nothing"):
        len(CSVDataset(tmp_path, filters=[("nothing", "==", 1)], cache=False))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_is_split_among_workers_and_resumed(shuffle: bool, tmp_path: Path) -> None:
    stream = dataset_of(tmp_path / "a.csv.gz", text_of(samples()), "number").stream(shuffle=shuffle, seed=3)
    loader = feedline.Loader(stream, 8, workers=2)
    whole = [batch.tolist() for batch in loader]
    assert sorted(number for batch in whole for number in batch) == list(range(COUNT))
    assert (whole[0] == list(range(8))) is not shuffle
    loader = feedline.Loader(stream, 8)
    batches = iter(loader)
    before = [next(batches).tolist() for _ in range(2)]
    other = feedline.Loader(stream, 8)
    other.load_state_dict(loader.state_dict())
    assert before + [batch.tolist() for batch in other] == whole


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        ("a,b\n1,2\n3\n", {}, "row 3.* 2 columns, got 1"),
        ("a,b\n" + "1,2\n" * 200 + '3,"x\ny",4\n', {}, "row 202.* 2 columns, got 3"),
        ("1,2\n3,4\n", {"columns": ["x"]}, "row 1"),
        ("a,b\n" + "1,2\n" * 99 + "3,x\n", {"types": {"b": "int64"}}, "row 101, column 'b'.*'x'"),
        ("a\n300\n", {"types": {"a": "int8"}}, "row 2, column 'a'.*300.*types="),
        *(('a,b\n1,2\n3,"x\n', options, "quote .* row 3") for options in ({}, {"fields": "a"})),
        ('a\n1\n"', {}, "row 3"),
        ('a,b\n1,2\n"3,\nx\n', {"fields": "b"}, "row 3"),
        ('a,b\n1,2\n3,"' + "x\n" * 200, {}, "row 3 or later"),
        ("", {}, "empty"),
        ("a\0b,c\n1,2\n", {}, "header"),
        ("a,a\n1,2\n", {}, "columns 'a'"),
        *(("a,b\n1,2\n", options, "'z', but .*'a', 'b'") for options in ({"types": {"z": "int8"}}, {"fields": "z"})),
    ],
)
def test_errors_name_file_and_row(
    text: str, options: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "LONGEST_ROW", 100)
    dataset = dataset_of(tmp_path / "a.csv", text, **options)
    with pytest.raises((SourceError, BadOption), match=named) as raised:
        len(dataset)
    assert "a.csv" in str(raised.value)


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,\xe9\n")
    with pytest.raises(CorruptSource, match=r"row 3, column 'y'.*not in UTF-8.*'binary'") as raised:
        len(CSVDataset(tmp_path / "a.csv", cache=False))
    assert "'string'" not in str(raised.value)
    (tmp_path / "u.csv").write_bytes("x,y\n1,a\n".encode("utf-16"))
    with pytest.raises(CorruptSource, match=r"u\.csv'.* in UTF-16.*iconv"):
        len(CSVDataset(tmp_path / "u.csv", cache=False))
    assert CSVDataset(tmp_path / "a.csv", "y", types={"y": "binary"}, cache=False)[1] == b"\xe9"


@pytest.mark.parametrize(
    "options",
    [
        {"types": {"x": "number"}},
        {"types": {"x": 3}},
        {"columns": "x"},
        {"delimiter": ",,"},
        {"delimiter": '"'},
        {"cache": 3},
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        CSVDataset("a.csv", **options)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz"])
def test_compressed_files_are_read_and_damaged_ones_rejected(packing: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.csv{packing}", text_of(samples()))
    assert len(CSVDataset(tmp_path, "number", cache=False)) == COUNT
    content = path.read_bytes()
    for damaged in (content[:-9], content[:60] + bytes([content[60] ^ 255]) + content[61:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptSource, match=r"a\.csv"):
            len(CSVDataset(path, cache=tmp_path / "cache"))


def test_files_with_different_columns_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "x,y\n1,2\n")
    write(tmp_path / "2.csv", "x,z\n1,2\n")
    with pytest.raises(SourceError, match=r"2\.csv' has no column 'y'"):
        len(CSVDataset(tmp_path, cache=False))
    assert [int(x) for x in CSVDataset(tmp_path, "x", cache=False)] == [1, 1]
