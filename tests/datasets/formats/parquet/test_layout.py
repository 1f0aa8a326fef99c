from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.formats.parquet.layout import Footer, Group, Layout
from feedline.datasets.framework.paths import File
from feedline.errors import SourceError


def footer(number: int, counts: list[int], types: dict[str, Any] | None = None) -> Footer:
    groups = [Group(number, group, count) for group, count in enumerate(counts)]
    return Footer(File(f"{number}.parquet", 1, 1), types or {"x": pa.int64()}, groups)


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4))
def test_every_sample_is_found(files: list[list[int]]) -> None:
    layout = Layout([footer(number, counts) for number, counts in enumerate(files)])
    expected = [
        (file, group, row)
        for file, counts in enumerate(files)
        for group, count in enumerate(counts)
        for row in range(count)
    ]
    assert len(layout) == len(expected)
    groups, rows = layout.find(np.arange(len(expected)))
    found = zip(layout.group_files[groups], layout.group_numbers[groups], rows, strict=True)
    assert [tuple(map(int, place)) for place in found] == expected


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, unique=True), min_size=1, max_size=4))
def test_rows_that_pass_a_filter(kept: list[list[int]]) -> None:
    groups = [Group(0, number, len(rows), np.array(sorted(rows), np.uint32)) for number, rows in enumerate(kept)]
    layout = Layout([Footer(File("a", 1, 1), {"x": pa.int64()}, groups)])
    owners, rows = layout.find(np.arange(len(layout)))
    expected = [(number, row) for number, rows in enumerate(kept) for row in sorted(rows)]
    assert list(zip(owners.tolist(), rows.tolist(), strict=True)) == expected


def test_types_of_columns_that_are_read_must_agree() -> None:
    first, second = footer(0, [1], {"x": pa.int64(), "y": pa.string()}), footer(1, [1], {"x": pa.int64()})
    assert len(Layout([first, second], ["x"])) == 2
    with pytest.raises(SourceError, match=r"'1\.parquet' has no column 'y'"):
        Layout([first, second], ["x", "y"])
    with pytest.raises(SourceError, match=r"is int64 .* but double"):
        Layout([first, footer(1, [1], {"x": pa.float64()})], ["x"])


def test_columns_with_only_missing_values_have_no_type() -> None:
    layout = Layout([footer(0, [1], {"x": pa.null()}), footer(1, [1]), footer(2, [1], {"x": pa.null()})])
    assert layout.types["x"] == pa.int64()
