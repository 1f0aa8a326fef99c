"""A few samples that draw random numbers, for runs that are resumed from every step."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset

import feedline

BATCH = 2
STEPS = 2
EPOCHS = 3
RANKS = int(os.environ["WORLD_SIZE"])
SIZE = BATCH * STEPS * RANKS


class Numbers(Dataset[torch.Tensor]):
    """Samples that consist of their index and a random number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), feedline.rng().random()])


class Stream(IterableDataset[torch.Tensor]):
    """A stream of samples that draw nothing."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index), 0.0]) for index in range(SIZE))
