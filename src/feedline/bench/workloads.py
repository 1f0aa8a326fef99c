"""Datasets and consumers that more than one benchmark uses; importable by spawned workers.

Every dataset is plain: nothing in it knows which loader reads it.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

_byte_at = ctypes.c_ubyte.from_address


# Any: a batch is a tensor or a nesting of lists and tuples of them.
def touch(batch: Any) -> None:
    """Read one element of every page of the batch, so that memory mapped but never read does not look free."""
    if isinstance(batch, (str, bytes)):
        _ = batch[::4096]
        return
    if not isinstance(batch, torch.Tensor):
        for part in batch:
            touch(part)
    elif batch.nbytes > mmap.PAGESIZE:
        array = batch.numpy()
        array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize].max()
    elif batch.nbytes:
        # By address: half a microsecond. Any tensor operation takes three to seven, a tenth of what a batch of the tiny
        # workload costs, and would be measured as if the loader had spent it.
        _byte_at(batch.data_ptr()).value  # noqa: B018


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
    """Finished float32 samples handed out from a small pool: whatever time a loader takes is its own."""

    def __init__(self, length: int, *, pool: int = 32, shape: tuple[int, ...] = (3, 224, 224)) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pool = [torch.randn(shape, generator=generator) for _ in range(pool)]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pool[index % len(self.pool)]
