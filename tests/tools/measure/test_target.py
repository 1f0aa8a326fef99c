"""The dataset or loader that a user names becomes arguments of loaders with endless epochs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from feedline import DataLoader
from feedline.errors import DatasetFailed
from feedline.tools.measure.target import make_some, open_target

BROKEN = Path(__file__).parent / "broken.py"

MINE = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    name = "mine"
    def __iter__(self):
        yield from range(3)

def pairs(samples):
    return torch.tensor(samples).reshape(-1, 2)

def loader():
    return DataLoader(range(10), batch_size=4, shuffle=True, collate_fn=pairs, num_workers=2)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine_to_tune.py"
    path.write_text(MINE)
    return path


# Any: a loader of either kind, and batches.
def batches(target: Any, count: int, kind: Any = DataLoader) -> list[Any]:
    return list(islice(kind(target.dataset, **target.options, num_workers=0), count))


def test_a_dataset_gets_endless_shuffled_batches() -> None:
    target = open_target(f"{BROKEN}:Plain", 7)
    assert (target.batch_size, target.is_loader) == (7, False)
    assert target.code == "dataset, batch_size=7, shuffle=True"
    for kind in (DataLoader, TorchLoader):
        got = batches(target, 40, kind)  # 280 samples of a dataset of 100
        assert {tuple(batch.shape) for batch in got} == {(7, 8)}
    assert open_target(f"{BROKEN}:Plain").batch_size == 32


def test_a_loader_keeps_its_settings(mine: Path) -> None:
    target = open_target(f"{mine}:loader")
    assert (target.batch_size, target.is_loader, target.code) == (4, True, "dataset, batch_size=4, shuffle=True")
    got = batches(target, 6)
    assert [tuple(batch.shape) for batch in got] == [(2, 2), (2, 2), (1, 2)] * 2
    assert sorted(torch.cat(got[:3]).flatten().tolist()) == list(range(10))
    other = open_target(f"{mine}:loader", 2)
    assert [tuple(batch.shape) for batch in batches(other, 6)] == [(1, 2)] * 6


def test_a_stream_is_repeated_and_must_not_be_empty(mine: Path) -> None:
    target = open_target(f"{mine}:Stream", 2)
    assert [batch.tolist() for batch in batches(target, 4)] == [[0, 1], [2, 0], [1, 2], [0, 1]]
    assert target.dataset.name == "mine"
    with pytest.raises(DatasetFailed, match="has no samples") as caught:
        make_some(open_target(f"{BROKEN}:EmptyStream"), seconds=0)
    assert caught.value.reason == "empty"


def test_size_and_cpu_time_of_batches_are_measured() -> None:
    made = make_some(open_target(f"{BROKEN}:Plain"), seconds=0)
    assert made.batch_bytes == 32 * 8 * 8
    assert made.cpu_s > 0
    with pytest.raises(DatasetFailed, match="KeyError: 'no sample") as caught:
        make_some(open_target(f"{BROKEN}:Raising"), seconds=0)
    assert caught.value.reason == "raises"
    assert "in look_up" in caught.value.traceback
