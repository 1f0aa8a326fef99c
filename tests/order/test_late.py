"""A late sample, whose worker's tasks move to another one, does not change what samples draw."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import feedline
from feedline import DataLoader
from tests.holding import Hold, pass_gate

N = 96
BATCH = 4
LATE = 2 * BATCH + 1
"""In the second batch of worker 0, which has made one before and has others pending."""


class Late(Dataset[Any]):
    """Draws from a global generator and from the sample's own; one sample waits at a gate."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == LATE:
            pass_gate(self.gate)
        return torch.tensor([index, random.random(), float(feedline.rng().random())], dtype=torch.float64)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    return Hold(tmp_path, monkeypatch)


def run(dataset: Late, **options: Any) -> torch.Tensor:
    return torch.cat([batch.clone() for batch in DataLoader(dataset, BATCH, **options)])


def test_with_a_seed_a_late_sample_changes_no_batch(hold: Hold) -> None:
    expected = run(Late(hold.gate.parent / "none"), seed=3)
    assert torch.equal(run(Late(hold.gate), seed=3, num_workers=2, multiprocessing_context="fork"), expected)
    assert hold.moved > 0


def test_every_sample_comes_once_on_threads_which_share_their_generators(hold: Hold) -> None:
    found = run(Late(hold.gate), engine="thread", num_workers=2)
    assert found[:, 0].tolist() == list(range(N))
    assert hold.moved > 0
