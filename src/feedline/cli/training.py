"""A small network, trained through `feedline.DataLoader` the way anybody would train it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.cli.pictures import PATTERNS, PictureDataset

BATCH_SIZE = 32


@dataclass(frozen=True)
class Epoch:
    """What one epoch achieved."""

    number: int
    loss: float
    """Mean over the training samples."""
    accuracy: float
    """Share of the held-out samples named correctly."""
    images_per_s: float
    """Training only, waiting for data included."""


def build_network() -> nn.Module:
    """Build three small convolutions, then the largest answer anywhere in the picture."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, len(PATTERNS)))


def count_batches(pictures: PictureDataset) -> int:
    """Count the batches of one epoch."""
    return -(-len(pictures) // BATCH_SIZE)


def train(
    pictures: PictureDataset,
    held_out: PictureDataset,
    *,
    epochs: int,
    worker_count: int,
    report: Callable[[], object],
) -> Iterator[Epoch]:
    """Train for `epochs`, calling `report` after each batch and yielding after each epoch."""
    torch.manual_seed(0)
    network = build_network()
    steps = count_batches(pictures) * epochs
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    loader = DataLoader(
        _as_dataset(pictures),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=worker_count,
        persistent_workers=worker_count > 0,
    )
    checks = DataLoader(_as_dataset(held_out), batch_size=64, num_workers=worker_count)
    for number in range(1, epochs + 1):
        network.train()
        begin = time.perf_counter()
        total_loss = 0.0
        for images, labels in loader:
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total_loss += loss.item() * len(labels)
            report()
        elapsed_s = time.perf_counter() - begin
        yield Epoch(number, total_loss / len(pictures), measure_accuracy(network, checks), len(pictures) / elapsed_s)
    loader.close()


@torch.no_grad()
def measure_accuracy(network: nn.Module, loader: DataLoader[tuple[torch.Tensor, int]]) -> float:
    """Measure the share of samples that the network names correctly."""
    network.eval()
    right = total = 0
    for images, labels in loader:
        right += int((network(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    return right / total


def _as_dataset(pictures: PictureDataset) -> Dataset[tuple[torch.Tensor, int]]:
    """Tell the type checker what torch documents: anything with a length and `__getitem__` is a dataset."""
    return cast("Dataset[tuple[torch.Tensor, int]]", pictures)
