from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from feedline.datasets import ArrowDataset, ParquetDataset
from feedline.datasets.formats.parquet.block import Block, columns_of
from feedline.datasets.formats.parquet.values import prepared
from feedline.testing.asserting import assert_same
from tests.datasets.formats.parquet.tables import write


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


def test_arrays_without_values() -> None:
    nothing = prepared(pa.array([[]] * 9, pa.list_(pa.float32(), 0)))
    blocks = [Block([nothing, nothing], lambda address: False) for _ in range(2)]
    assert blocks[0].rows is None
    found = columns_of(blocks, np.array([1, 0]), np.array([8, 1]), np.empty)
    assert [column.shape for column in found if isinstance(column, np.ndarray)] == [(2, 0), (2, 0)]
