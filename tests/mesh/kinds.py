"""Kinds of data that a loader with `mesh=` distributes, and what one rank of a group does with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from torch.utils.data.datapipes.iter import IterableWrapper

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.datasets import TarDataset
from feedline.text import TokenDataset

N = 48


class Drawing(torch_data.Dataset[Any]):
    """Samples with random numbers."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), float(np.random.random()), float(torch.rand(())), feedline.rng().random()]


class Counting(torch_data.IterableDataset[int]):
    """All samples, on every rank."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


def tens() -> list[int]:
    return list(range(N))


# Any, throughout: loaders and options of any kind.
KINDS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "in order": lambda _, given: DataLoader(tens(), 2, **given),
    "shuffled": lambda _, given: DataLoader(tens(), 2, shuffle=True, **given),
    "single samples": lambda _, given: DataLoader(tens(), None, shuffle=True, **given),
    "Loader": lambda _, given: Loader(tens(), 2, shuffle=True, **given),
    "random numbers": lambda _, given: DataLoader(Drawing(), 2, shuffle=True, **given),
    "own generator": lambda _, given: DataLoader(tens(), 2, shuffle=True, generator=torch.Generator(), **given),
    "feedline's sampler": lambda _, given: DataLoader(tens(), 2, sampler=samplers.RandomSampler(range(N)), **given),
    "torch's sampler": lambda _, given: DataLoader(tens(), 2, sampler=torch_data.RandomSampler(range(N)), **given),
    "torch's sampler with a generator": lambda _, given: Loader(
        tens(), 2, sampler=torch_data.RandomSampler(range(N), generator=torch.Generator()), **given
    ),
    "batch sampler": lambda _, given: DataLoader(
        tens(), batch_sampler=samplers.StratifiedBatchSampler([index % 2 for index in range(N)], 2), **given
    ),
    "equal steps": lambda _, given: DataLoader(
        tens(), batch_sampler=samplers.BalancedBatches([1 + index % 5 for index in range(N)], 2, window=3), **given
    ),
    "torch's batch sampler": lambda _, given: DataLoader(
        tens(), batch_sampler=torch_data.BatchSampler(torch_data.RandomSampler(range(N)), 2, False), **given
    ),
    "stream": lambda _, given: DataLoader(Counting(), 2, shard=True, **given),
    "pipe": lambda _, given: DataLoader(feedline.pipe(Counting()).window_shuffle(8, seed=1), 2, **given),
    "data pipe": lambda _, given: DataLoader(IterableWrapper(range(N)).shuffle().sharding_filter(), 2, **given),
    "shards": lambda folder, given: DataLoader(_shards(folder), 2, **given),
    "shards in a pipe": lambda folder, given: Loader(feedline.pipe(_shards(folder)).map(_same), 2, **given),
    "tokens": lambda folder, given: DataLoader(TokenDataset(folder / "tokens.bin", 4), 2, shuffle=True, **given),
}
"""A loader for each kind, made of a folder and the arguments that they all have in common."""


def _shards(folder: Path) -> Any:
    return TarDataset(str(folder / "shard-*.tar"), "cls").stream(shuffle=True, buffer=4, seed=2)


def _same(sample: Any) -> Any:
    return sample


def plain(batch: Any) -> Any:
    """Return a batch as lists."""
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def values(batches: list[Any]) -> list[float]:
    """Return what identifies each sample in plain batches."""
    found: list[Any] = []
    for batch in batches:
        if isinstance(batch, dict):
            batch = [row[0] for row in next(iter(batch.values()))]
        elif batch and isinstance(batch, list) and isinstance(batch[0], list):
            batch = batch[0]
        found += batch if isinstance(batch, list) else [batch]
    return found
