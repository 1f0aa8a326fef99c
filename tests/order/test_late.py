"""A late sample, whose worker's tasks move to another one, does not change what samples draw."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset

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


class WithKey(Late):
    def draw(self) -> float:
        return float(feedline.rng().random())


def run(dataset: Late, **options: Any) -> Any:
    loader = DataLoader(dataset, BATCH, **{"num_workers": 2, "multiprocessing_context": "fork", **options})
    return torch.cat([batch.clone() for batch in loader])


@pytest.mark.parametrize("dataset", [Late(), WithKey(), WithRandom()], ids=lambda each: type(each).__name__)
def test_with_a_seed_a_late_sample_changes_no_batch(dataset: Late) -> None:
    expected = run(dataset, seed=3, num_workers=0, multiprocessing_context=None)
    assert torch.equal(run(dataset, seed=3), expected)


def test_every_sample_comes_once_on_threads_which_share_their_generators() -> None:
    found = run(WithRandom(), engine="thread", multiprocessing_context=None)
    assert found[:, 0].tolist() == list(range(N))
