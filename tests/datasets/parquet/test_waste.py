from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from feedline.datasets import ParquetDataset
from feedline.datasets.parquet import waste
from feedline.errors import RowGroupsReadAgain
from feedline.samplers import BlockSampler, RandomSampler
from tests.datasets.parquet.tables import table, write

COUNT = 240


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(waste, "LATEST_S", 0.0)
    return write(tmp_path / "a.parquet", table(COUNT), group=24)


def read_in_random_order(dataset: ParquetDataset) -> None:
    for index in RandomSampler(dataset, seed=1):
        dataset[index]


def test_random_order_over_more_than_is_kept_is_told_once_with_what_to_do(path: Path) -> None:
    dataset = ParquetDataset(path, "number", cache_bytes=0)
    with pytest.warns(RowGroupsReadAgain, match=r"unpack_to=.*cache_bytes=0.*BlockSampler.*stream") as told:
        read_in_random_order(dataset)
    assert len(told) == 1


@pytest.mark.parametrize("way", ["fits", "in order", "blocks", "unpacked", "stream"])
def test_nothing_is_said_where_little_is_in_vain(path: Path, way: str) -> None:
    dataset = ParquetDataset(
        path,
        "number",
        cache_bytes=1 << 20 if way in ("fits", "unpacked") else 0,
        unpack_to=path.parent / "unpacked" if way == "unpacked" else None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            if way == "in order":
                assert [int(number) for number in dataset] == list(range(COUNT))
            elif way == "blocks":
                order = list(BlockSampler(dataset.row_group_sizes, window=1, seed=3))
                assert sorted(order) == list(range(COUNT))
                dataset.__getitems__(order)
            elif way == "stream":
                assert sorted(map(int, dataset.stream(shuffle=True))) == list(range(COUNT))
            else:
                read_in_random_order(dataset)
