from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from feedline.datasets import ParquetDataset
from feedline.datasets.parquet.block import Block
from feedline.datasets.parquet.values import prepared
from feedline.testing.source import assert_same
from tests.datasets.parquet.tables import write


def columns() -> list[pa.Array]:
    return [
        pa.array([1, 2, 3], pa.int8()),
        pa.array(["a", "b", "c"]),
        pa.array([0.5, 1.5, 2.5], pa.float64()),
        pa.array([1, None, 3], pa.int16()),
        pa.array([True, False, True]),
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
    ]


def test_single_numbers_are_packed_and_nothing_is_lost() -> None:
    made = [prepared(column) for column in columns()]
    block = Block(list(made), lambda address: False)
    assert block.kind is not None
    assert block.kind.names == ("0", "2", "4")
    rows = np.array([2, 0, 2])
    for packed, column in zip(block.columns, made, strict=True):
        assert_same(list(packed.take(rows)), list(column.take(rows)))
    assert block.held_bytes >= 3 * (1 + 8 + 1)


def test_what_is_mapped_is_left_where_it_is() -> None:
    made = [prepared(column) for column in columns()[:3]]
    block = Block(list(made), lambda address: True)
    assert block.rows is None
    assert block.columns == made
    assert block.held_bytes == 0


def test_row_groups_that_are_packed_differently(tmp_path: Path) -> None:
    """A column that lacks values in one of them only."""
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
