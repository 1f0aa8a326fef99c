"""What sources have in common, tested with sources in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import feedline
from feedline import collate
from feedline.datasets.framework.source import Empty, Indices, TableSource, is_column, stacked
from tests.datasets.contract import SourceContract


class Table(TableSource):
    """A source that reads columns."""

    _lazy = ("reads",)

    def __init__(self, count: int = 30, **options: Any) -> None:
        super().__init__(**options)
        self.count = count
        self.reads = 0

    def __len__(self) -> int:
        return self.count

    def _read_columns(self, indices: Indices, empty: Empty) -> list[Any]:
        self.reads += 1
        numbers = empty((len(indices), 2), np.dtype(np.float32))
        numbers[:, 0], numbers[:, 1] = indices, -indices
        return [numbers, indices.astype(np.int32), [str(index) for index in indices.tolist()]]

    def _build(self, values: Sequence[Any]) -> Any:
        return dict(zip(("x", "y", "name"), values, strict=True))

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "{'x': float32[2], 'y': int32[], 'name': str}"


class TestTable(SourceContract):
    def make_source(self, **options: Any) -> Table:
        return Table(**options)

    def samples(self) -> list[Any]:
        return [
            {"x": np.array([index, -index], np.float32), "y": np.int32(index), "name": str(index)}
            for index in range(30)
        ]


parts_of: Any = feedline.split
of: Any = Table  # torch's loaders are annotated for torch's own datasets


def described(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, dict):
        return {name: described(value) for name, value in batch.items()}
    return batch


@pytest.mark.parametrize(
    "make",
    [
        of,
        lambda: Subset(of(), [3, 1, 4, 1, 5, 9, 2, 6]),
        lambda: ConcatDataset([of(5), of(7), of(3)]),
        lambda: ConcatDataset([of(5), Subset(of(9), [8, 2])]),
        lambda: feedline.split(of(), [0.5, 0.5], seed=1)[1],
        lambda: Subset(parts_of(of(), [0.5, 0.5], seed=1)[0], [2, 0]),
    ],
    ids=["itself", "Subset", "ConcatDataset", "both", "split", "Subset of split"],
)
def test_batches_equal_those_of_torchs_loader(make: Any) -> None:
    expected = [described(batch) for batch in DataLoader(make(), 4)]
    assert [described(batch) for batch in feedline.DataLoader(make(), 4)] == expected


def test_a_batch_takes_one_read() -> None:
    table = of()
    assert len(list(feedline.DataLoader(table, 10))) == 3
    assert table.reads == 3
    assert len(list(feedline.Loader(table, 10))) == 3
    assert table.reads == 6


def test_concatenated_datasets_with_different_fields_are_collated_as_samples() -> None:
    class Longer(Table):
        def _build(self, values: Sequence[Any]) -> Any:
            return {**super()._build(values), "more": values[1]}

    longer: Any = Longer
    mixed: Any = ConcatDataset([of(5), longer(5)])
    for loader in (DataLoader(mixed, 10), feedline.DataLoader(mixed, 10)):
        [batch] = loader
        assert list(batch) == ["x", "y", "name"]


class Doubled(Table):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)["y"] * 2


class DoubledTwice(Doubled):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] * 2 for index in indices]


@pytest.mark.parametrize(("kind", "factor"), [(Doubled, 2), (DoubledTwice, 4)])
def test_overridden_sample_methods_of_a_subclass_are_used(kind: Any, factor: int) -> None:
    loaders: Any = (DataLoader(kind(5), 5), feedline.DataLoader(kind(5), 5))
    for loader in loaders:
        [batch] = loader
        assert batch.tolist() == [factor * number for number in range(5)]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        [1.5, 2.0],
        [True, False],
        [np.float32(1), np.float32(2)],
        [np.uint8(1), np.uint8(2)],
        [np.arange(3), np.arange(3) + 1],
        [np.zeros((2, 1), np.float32)] * 3,
        [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    ],
    ids=repr,
)
def test_columns_of_numbers_equal_collated_numbers(values: list[Any]) -> None:
    column, expected = stacked(values, np.empty), collate.default(values)
    assert is_column(column)
    assert isinstance(column, np.ndarray)
    assert column.dtype == expected.dtype
    np.testing.assert_array_equal(column, expected)


def test_strings_become_columns_unchanged() -> None:
    for values in (["a", "b"], [b"a", b"b"]):
        assert stacked(values, np.empty) is values
        assert is_column(values)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [1, None],
        [1 << 70, 1],
        [np.arange(3), np.arange(4)],
        [np.arange(3), np.arange(3.0)],
        [np.zeros(2, ">f4")] * 2,
        [np.array(["a"])] * 2,
        [np.datetime64("2020-01-01")] * 2,
        [np.str_("a")] * 2,
        [{"a": 1}] * 2,
        [None, None],
    ],
    ids=repr,
)
def test_other_values_are_passed_to_the_collate_function(values: list[Any]) -> None:
    assert stacked(values, np.empty) is values
    assert not is_column(values)
