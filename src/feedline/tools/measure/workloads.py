"""Datasets that more than one benchmark uses; importable by spawned workers.

Every dataset is plain: nothing in it knows which loader reads it.
"""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, TensorDataset


def tiny_tensors(length: int) -> TensorDataset:
    """Make the tiny dataset as torch's own array-backed class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (length,), generator=generator)
    return TensorDataset(torch.randn(length, 10, generator=generator), labels)


class TinyMap(Dataset[tuple[torch.Tensor, int]]):
    """The tiny dataset as people write it: one small tensor and one int per index."""

    def __init__(self, length: int) -> None:
        tensors = tiny_tensors(length).tensors
        self.rows = tensors[0]
        self.labels: list[int] = tensors[1].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index], self.labels[index]


class ReadySamples(Dataset[torch.Tensor]):
    """Finished float32 samples handed out from a small pool: all the time that a loader takes is its own."""

    def __init__(self, length: int, *, pool: int = 32, shape: tuple[int, ...] = (3, 224, 224)) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pool = [torch.randn(shape, generator=generator) for _ in range(pool)]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pool[index % len(self.pool)]
