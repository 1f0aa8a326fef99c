from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import ArrowDataset, ParquetDataset
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.contract import SourceContract
from tests.datasets.formats.parquet.tables import COUNT, TableContract, samples, table, write
from tests.sampling import examples


class TestParquetDataset(TableContract):
    source = ParquetDataset
    name = "a.parquet"


class TestColumnsThatCanBeBatched(SourceContract):
    """The cache is too small for two row groups."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        write(tmp_path / "a-1.parquet", table().slice(0, 17))
        write(tmp_path / "a-2.parquet", table().slice(17, 0))
        write(tmp_path / "a-3.parquet", table().slice(17), group=4)
        self.pattern = str(tmp_path / "a-*.parquet")

    def make_source(self, **options: Any) -> ParquetDataset:
        return ParquetDataset(self.pattern, ("image", "number", "name", "blob"), cache_bytes=1, **options)

    def samples(self) -> list[Any]:
        return [(row["image"], row["number"], row["name"], row["blob"]) for row in samples()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.parquet", table())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Return a list that collects the row groups that are read, with their columns."""
    found: list[tuple[int, list[str]]] = []
    load = ParquetDataset._load

    def noted(self: Any, file: Any, number: int, names: list[str]) -> Any:
        found.append((number, names))
        return load(self, file, number, names)

    monkeypatch.setattr(ParquetDataset, "_load", noted)
    return found


def test_the_repr_shows_fields_and_shapes(path: Path) -> None:
    text = repr(ParquetDataset(path))
    assert text.startswith("ParquetDataset(40 samples of {'image': float32[2, 3], 'number': int64[], ")
    assert "'ragged': list<element: int32>" in text
    assert repr(ParquetDataset(path, "number", filters=pc.field("number") > 3)) == (
        "ParquetDataset(36 samples of int64[], filters=(number > 3))"
    )


def test_a_batch_reads_each_row_group_once_and_only_the_named_columns(
    path: Path, reads: list[tuple[int, list[str]]]
) -> None:
    dataset = ParquetDataset(path, ["number", "name"])
    assert len(dataset) == COUNT
    assert reads == []
    dataset.__getitems__([0, 8, 1, 9, 2, 35])
    assert sorted(number for number, _ in reads) == [0, 1, 5]
    assert all(names == ["number", "name"] for _, names in reads)
    dataset.__getitems__([3, 10])
    assert len(reads) == 3


def test_the_cache_is_bounded(path: Path, reads: list[tuple[int, list[str]]]) -> None:
    small = ParquetDataset(path, "number", cache_bytes=3 * (7 * 8 + 8192))
    for index in range(COUNT):
        assert small[index] == index
    assert len(reads) == 6
    assert len(small._blocks) <= 3
    assert small._blocks.held <= small.cache_bytes
    assert small[39] == 39
    assert len(reads) == 6
    assert small[0] == 0
    assert len(reads) == 7
    small.close()
    assert len(small._blocks) == 0


def test_missing_values_in_a_batch(path: Path) -> None:
    dataset = ParquetDataset(path, "maybe")
    assert dataset.read_columns(np.array([3, 4])) is None
    assert_same(dataset.read_columns(np.array([4, 5])), np.array([2.0, 2.5]))
    assert ParquetDataset(path, "ragged").read_columns(np.array([1, 2])) is None


FILTERS: dict[str, tuple[Callable[[], Any], Callable[[int], bool]]] = {
    "one condition": (lambda: [("number", ">=", 30)], lambda i: i >= 30),
    "several": (lambda: [("number", ">=", 10), ("number", "<", 12)], lambda i: 10 <= i < 12),
    "one of": (lambda: [[("number", "<", 2)], [("name", "=", "nämé 20")]], lambda i: i < 2 or i == 20),
    "in": (lambda: [("number", "in", [1, 39, 77])], lambda i: i in (1, 39)),
    "not": (lambda: ~(pc.field("number") < 9), lambda i: i >= 9),
    "null is not true": (lambda: pc.field("maybe") >= 0, lambda i: i % 7 != 3),
    "is null": (lambda: pc.field("maybe").is_null(), lambda i: i % 7 == 3),
    "nested": (lambda: pc.field("meta", "score") > 35, lambda i: i > 35),
    "nothing": (lambda: [("number", ">", 1000)], lambda i: False),
    "everything": (lambda: [("number", ">", -1)], lambda i: True),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_select_rows(path: Path, name: str) -> None:
    filters, holds = FILTERS[name]
    dataset = ParquetDataset(path, "number", filters=filters())
    kept = [i for i in range(COUNT) if holds(i)]
    assert len(dataset) == len(kept)
    assert [int(number) for number in dataset] == kept
    if kept:
        assert [int(n) for n in dataset.__getitems__(range(len(kept)))] == kept
        assert dataset[-1] == kept[-1]


def test_row_groups_without_matching_rows_are_not_read(path: Path, reads: list[tuple[int, list[str]]]) -> None:
    """They are read neither to count samples nor for samples: the test overwrites the other row groups with garbage."""
    metadata = pq.ParquetFile(path).metadata
    data = bytearray(path.read_bytes())
    for group in range(5):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            start = min(x for x in (chunk.dictionary_page_offset, chunk.data_page_offset) if x)
            data[start : start + chunk.total_compressed_size] = b"\xaa" * chunk.total_compressed_size
    path.write_bytes(data)
    dataset = ParquetDataset(path, ["number", "name"], filters=[("number", ">=", 36)])
    assert [int(sample["number"]) for sample in dataset] == [36, 37, 38, 39]
    assert reads == [(5, ["number", "name"])]
    with pytest.raises(CorruptSource, match="row group 0"):
        ParquetDataset(path, "name")[0]


@pytest.mark.parametrize(
    "filters", [[("colour", "=", 1)], [("number", "=", "x")], [("number", "~", 1)], 7, "x > 3", "expression"]
)
def test_bad_filters_are_rejected(path: Path, filters: Any) -> None:
    with pytest.raises(BadOption, match="filters="):
        len(ParquetDataset(path, filters=pc.field("colour") == 1 if filters == "expression" else filters))


@settings(max_examples=examples(25), deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    group=st.integers(1, 12),
    low=st.one_of(st.none(), st.integers(0, 60)),
    data=st.data(),
)
def test_any_files_any_filter_any_indices(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], group: int, low: int | None, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    numbers = np.arange(sum(counts))
    start = 0
    for number, count in enumerate(counts):
        rows = pa.table({"x": numbers[start : start + count], "s": [f"{i}" for i in range(start, start + count)]})
        write(folder / f"{number}.parquet", rows, group)
        start += count
    filters = None if low is None else [("x", ">=", low)]
    dataset = ParquetDataset(folder, ("x", "s"), filters=filters, cache_bytes=data.draw(st.sampled_from([0, 10**6])))
    kept = [int(i) for i in numbers if low is None or i >= low]
    assert len(dataset) == len(kept)
    if kept:
        indices = data.draw(st.lists(st.integers(-len(kept), len(kept) - 1), max_size=20))
        found = dataset.__getitems__(indices)
        assert [(int(x), s) for x, s in found] == [(kept[i], str(kept[i])) for i in indices]
        columns = dataset.read_columns(np.array(indices, np.int64)) if indices else None
        if columns is not None:
            assert columns[0].tolist() == [kept[i] for i in indices]


def test_rejects_several_columns_of_the_same_name(tmp_path: Path) -> None:
    rows = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    for name in ("a.parquet", "a.arrow"):
        path = write(tmp_path / name, rows)
        kind = ParquetDataset if path.suffix == ".parquet" else ArrowDataset
        with pytest.raises(SourceError, match="several columns 'x'"):
            len(kind(path))


def test_files_with_different_schemas_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"x": [1, 2], "y": [1, 2]}))
    write(tmp_path / "2.parquet", pa.table({"x": [1.5]}))
    with pytest.raises(SourceError, match=r"Column 'x' is int64.*1\.parquet.*double.*2\.parquet"):
        len(ParquetDataset(tmp_path, "x"))
    with pytest.raises(SourceError, match=r"2\.parquet' has no column 'y'"):
        len(ParquetDataset(tmp_path, "y"))


def test_files_with_columns_in_another_order_and_extra_columns(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"x": [1, 2], "y": ["a", "b"]}))
    write(tmp_path / "2.parquet", pa.table({"z": [0.5], "y": ["c"], "x": [3]}))
    assert list(ParquetDataset(tmp_path)) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}, {"x": 3, "y": "c"}]


def test_names_with_dots_and_other_letters(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([{"b": 1}]), "a.b": [7], "größe": [1.5], "": ["x"]})
    path = write(tmp_path / "päth with spaces [1].parquet", rows)
    assert ParquetDataset(path, "a.b")[0] == 7
    assert ParquetDataset(path, "a")[0] == {"b": 1}
    assert ParquetDataset(path, ("größe", ""))[0] == (1.5, "x")


def test_columns_with_only_missing_values_have_no_type(tmp_path: Path) -> None:
    for number, values in enumerate(([None], [7], [None])):
        write(tmp_path / f"{number}.parquet", pa.table({"x": pa.array(values)}))
    assert list(ParquetDataset(tmp_path, "x")) == [None, 7, None]


def test_no_samples(tmp_path: Path) -> None:
    none = ParquetDataset(write(tmp_path / "0.parquet", pa.table({"x": pa.array([], pa.int64())})))
    assert len(none) == 0
    assert list(none) == list(none.stream(shuffle=True)) == []
    with pytest.raises(IndexError):
        none[0]


def test_checksums_of_columns_that_only_a_filter_reads_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"x": np.arange(100), "y": np.arange(100) + 1000})
    pq.write_table(rows, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = path.read_bytes()
    place = data.index(np.arange(1000, 1100).tobytes())
    path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
    with pytest.raises(CorruptSource, match=r"[Cc]hecksum|CRC"):
        len(ParquetDataset(path, "x", filters=[("y", "<", 1010)]))
    assert ParquetDataset(path, "x")[3] == 3


def test_fewer_samples_than_were_packed_are_detected(tmp_path: Path) -> None:
    path = feedline.pack([{"x": number} for number in range(9)], tmp_path / "a.parquet", workers=0).path
    assert len(ParquetDataset(path)) == 9
    stored = pq.read_metadata(path).metadata[b"feedline"]
    pq.write_table(pq.read_table(path).slice(2).replace_schema_metadata({"feedline": stored}), path)
    with pytest.raises(CorruptSource, match=r"a\.parquet' has 7 samples, but 9 were packed"):
        len(ParquetDataset(path))


def test_other_shapes_than_were_packed_are_detected(tmp_path: Path) -> None:
    """Parquet has no checksum for the place where shapes are stored."""
    packed = feedline.pack([{"x": np.zeros((2, 3))}] * 9, tmp_path / "a.parquet", workers=0)
    path = packed.path
    assert ParquetDataset(path)[0]["x"].shape == (2, 3)
    data = path.read_bytes()
    assert data.count(b"ARROW:schema") == 1
    path.write_bytes(data.replace(b"ARROW:schema", b"ARROW:schemb"))
    with pytest.raises(CorruptSource, match=r"a\.parquet': samples of 'x' were packed as arrays of shape \(2, 3\)"):
        len(ParquetDataset(path))


def test_a_footer_whose_rows_do_not_add_up(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(12))}), path, row_group_size=5)
    data = path.read_bytes()
    rows, more = b"\x16\x18\x19", b"\x16\x1a\x19"  # the third field of the footer: 12 and 13, before the row groups
    assert data.count(rows) == 1
    path.write_bytes(data.replace(rows, more))
    with pytest.raises(CorruptSource, match=r"a\.parquet' is damaged: the file has 13 rows .* its row groups 12"):
        len(ParquetDataset(path))
