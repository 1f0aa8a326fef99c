"""A late sample does not change random numbers: without a seed they are torch's."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, get_worker_info

import feedline
from feedline import DataLoader

pytestmark = pytest.mark.sample(7)

N = 96
BATCH = 4
LATE = 2 * BATCH + 1
"""In the second batch of worker 0, which has made one before and has others pending."""
LATE_S = 0.3
"""Three times the threshold for being late."""


class Late(Dataset[Any]):
    """Draws nothing; one sample takes long."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == LATE:
            time.sleep(LATE_S)
        return torch.tensor([index, self.draw()], dtype=torch.float64)

    def draw(self) -> float:
        return 0.0


class WithRandom(Late):
    def draw(self) -> float:
        return random.random()


class WithOwn(Late):
    """Has its own generator, which is copied to every worker."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def draw(self) -> float:
        return float(self.rng.random())


class WithWorker(Late):
    """Depends on the worker without drawing anything."""

    def draw(self) -> float:
        info = get_worker_info()
        return 0.0 if info is None else float(info.id)


class WithKey(Late):
    def draw(self) -> float:
        return float(feedline.rng().random())


def run(loader: type[torch.utils.data.DataLoader[Any]], dataset: Late, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(5)
    made = loader(dataset, BATCH, **{"num_workers": 2, "multiprocessing_context": "fork", **options})
    return torch.cat([batch.clone() for batch in made]), made


DRAWING: dict[str, Late] = {
    "random": WithRandom(),
    "own": WithOwn(),
    "worker": WithWorker(),
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_late_sample_leaves_the_random_numbers_torchs(name: str) -> None:
    expected, _ = run(torch.utils.data.DataLoader, DRAWING[name])
    found, loader = run(DataLoader, DRAWING[name])
    assert torch.equal(found, expected)
    assert loader.stats()["relieved_tasks"] == 0
    assert loader.stats()["run_ahead_tasks"] > 0, "the other worker did not wait"


@pytest.mark.parametrize("dataset", [Late(), WithKey(), WithRandom()], ids=lambda each: type(each).__name__)
def test_with_a_seed_a_late_sample_changes_no_batch(dataset: Late) -> None:
    found, _ = run(DataLoader, dataset, seed=3)
    expected, _ = run(DataLoader, dataset, seed=3, num_workers=0, multiprocessing_context=None)
    assert torch.equal(found, expected)


def test_every_sample_comes_once_on_threads_which_share_their_generators() -> None:
    found, _ = run(DataLoader, WithRandom(), engine="thread", multiprocessing_context=None)
    assert found[:, 0].tolist() == list(range(N))
