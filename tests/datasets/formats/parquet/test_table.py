from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from feedline.datasets import ParquetDataset
from feedline.datasets.formats.parquet import table as module
from feedline.errors import PerformanceWarning
from feedline.samplers import BlockSampler, RandomSampler
from tests.datasets.formats.parquet.tables import table, write

COUNT = 240


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_LATEST_S", 0.0)
    return write(tmp_path / "a.parquet", table(COUNT), group=24)


def read_in_random_order(dataset: ParquetDataset) -> None:
    for index in RandomSampler(dataset, seed=1):
        dataset[index]


def test_random_order_warns_if_the_cache_holds_half_of_many_small_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`feedline pack` writes large samples like this: a few per row group, so little is decoded in vain."""
    monkeypatch.setattr(module, "_LATEST_S", 0.0)
    rows = table(COUNT)
    dataset = ParquetDataset(write(tmp_path / "a.parquet", rows, group=4), "number", cache_bytes=COUNT // 8 * 8192)
    with pytest.warns(PerformanceWarning, match="cache="):
        read_in_random_order(dataset)


def test_no_warning_for_a_worker_that_gets_other_row_groups_in_every_epoch(path: Path) -> None:
    dataset = ParquetDataset(path, "number", cache_bytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(8):
            for block in np.random.default_rng(seed).choice(COUNT // 24, COUNT // 48, replace=False):
                dataset.__getitems__(range(24 * block, 24 * block + 24))


@pytest.mark.parametrize("way", ["fits", "in order", "blocks", "unpacked", "stream"])
def test_no_warning_if_little_is_decoded_in_vain(path: Path, way: str) -> None:
    dataset = ParquetDataset(
        path,
        "number",
        cache_bytes=1 << 20 if way in ("fits", "unpacked") else 0,
        cache=path.parent / "unpacked" if way == "unpacked" else False,
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
