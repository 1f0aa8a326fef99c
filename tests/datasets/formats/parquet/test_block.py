from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from feedline.datasets import ArrowDataset, ParquetDataset
from feedline.datasets.formats.parquet.block import Block, columns_of
from feedline.datasets.formats.parquet.values import prepared
from feedline.testing.source import assert_same
from tests.datasets.formats.parquet.tables import write


def columns() -> list[pa.Array]:
    return [
        pa.array([1, 2, 3], pa.int8()),
        pa.array(["a", "b", "c"]),
        pa.array([0.5, 1.5, 2.5], pa.float64()),
        pa.array([1, None, 3], pa.int16()),
        pa.array([True, False, True]),
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
    ]


def test_numbers_are_packed_and_nothing_is_lost() -> None:
    made = [prepared(column) for column in columns()]
    block = Block(list(made), lambda address: False)
    assert block.kind is not None
    assert block.kind.names == ("0", "2", "4", "5")
    rows = np.array([2, 0, 2])
    for packed, column in zip(block.columns, made, strict=True):
        assert_same(list(packed.take(rows)), list(column.take(rows)))
    assert block.held_bytes >= 3 * (1 + 8 + 1)


def test_mapped_columns_are_not_copied() -> None:
    made = [prepared(column) for column in columns()[:3]]
    block = Block(list(made), lambda address: True)
    assert block.rows is None
    assert block.columns == made
    assert block.held_bytes == 0


def test_row_groups_with_different_packing(tmp_path: Path) -> None:
    """A column has missing values in one of them only."""
    maybe = [None if i == 7 else i for i in range(12)]
    table = pa.table({"a": np.arange(12), "b": pa.array(maybe, pa.int32()), "c": np.arange(12) / 2})
    dataset = ParquetDataset(write(tmp_path / "a.parquet", table, 4), ("a", "b", "c"))
    order = [11, 0, 6, 3, 8]
    found = dataset.read_columns(np.array(order))
    assert_same(found, (np.array(order), np.array(order, np.int32), np.array(order) / 2))
    assert [value for _, value, _ in dataset.__getitems__([7, 0])] == [None, 0]
    assert_same(
        dataset.read_columns(np.array([1, 9])), (np.array([1, 9]), np.array([1, 9], np.int32), np.array([0.5, 4.5]))
    )


@pytest.mark.parametrize("row_group", [200_000, 20_000])
def test_a_batch_copies_its_rows_but_no_whole_columns(tmp_path: Path, row_group: int) -> None:
    table = pa.table({f"x{number}": np.arange(200_000, dtype=np.float32) + number for number in range(4)})
    dataset = ParquetDataset(write(tmp_path / "a.parquet", table, row_group))
    order = np.random.default_rng(0).permutation(200_000)
    dataset.read_columns(order)  # all row groups are decoded
    wanted = order[:64]
    tracemalloc.start()
    try:
        found = dataset.read_columns(wanted)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_same(found, {f"x{number}": wanted.astype(np.float32) + number for number in range(4)})
    assert peak < 100_000, "one column of a row group has at least 80,000 bytes, and there are four columns"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_strings_of_any_row_groups(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [None if number % 5 == 3 else "" if number % 4 == 1 else f"Füße {number}" * number for number in range(20)]
    is_text = "string" in str(kind)
    expected = [text if text is None or is_text else text.encode() for text in texts]
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(path, pa.schema([("text", kind)])) as file:
        for start in (0, 3, 11):
            stop = {0: 3, 3: 11, 11: 20}[start]
            column = pa.array(expected, pa.string() if is_text else pa.binary()).cast(kind)
            file.write_batch(pa.record_batch([column.slice(start, stop - start)], ["text"]))
    dataset = ArrowDataset(path, "text")
    order = [19, 0, 3, 12, 12, 7, 2]
    assert dataset.__getitems__(order) == [expected[index] for index in order]
    assert [dataset[index] for index in range(20)] == expected


def test_strings_of_a_slice_and_of_an_empty_column() -> None:
    whole = pa.array(["a", "bc", None, "", "def"])
    assert prepared(whole.slice(1, 4)).take(np.array([3, 0, 1])) == ["def", "bc", None]
    assert prepared(pa.array([], pa.string())).take(np.array([], np.int64)) == []
    assert prepared(pa.array(["", ""])).take(np.array([1])) == [""]


def test_arrays_without_values() -> None:
    nothing = prepared(pa.array([[]] * 9, pa.list_(pa.float32(), 0)))
    blocks = [Block([nothing, nothing], lambda address: False) for _ in range(2)]
    assert blocks[0].rows is None
    found = columns_of(blocks, np.array([1, 0]), np.array([8, 1]), np.empty)
    assert [column.shape for column in found if isinstance(column, np.ndarray)] == [(2, 0), (2, 0)]
