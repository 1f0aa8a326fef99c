"""The demo's training: a small network on the CPU, which learns the patterns with any loader."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from feedline.system.shown import percent
from feedline.tools.cli.pictures import PATTERNS
from feedline.tools.measure import load
from feedline.tools.measure.harness import LoaderLike, close

LEARNING_RATE = 0.05


@dataclass
class Epoch:
    """Results of an epoch, so far or at its end."""

    images: int = 0
    right: int = 0
    """Images that the network classified correctly before it learned from them."""
    seconds: float = 0.0
    """From `iter(loader)` to the last batch."""
    waited_s: float = 0.0
    """The part of them in which the training loop waited for data."""

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds

    @property
    def stall(self) -> float:
        return self.waited_s / self.seconds

    def __str__(self) -> str:
        waits, accuracy = percent(self.stall), percent(self.right / self.images)
        return f"{self.images_per_s:,.0f} images/s, waits {waits}, accuracy {accuracy}"


def build_network() -> nn.Module:
    """Build a network of three small convolutions, a global maximum and a linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    for width, size, stride in ((16, 8, 8), (32, 3, 2), (64, 3, 2)):
        convolution = nn.Conv2d(channels, width, size, stride=stride, padding=size % 2, bias=False)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, len(PATTERNS)))


class Training:
    """A network that learns from the batches of a loader; the same network and order for every loader."""

    def __init__(self, loader: LoaderLike) -> None:
        self.loader = loader
        self.epochs = 0
        torch.manual_seed(0)
        self._network = build_network()

    def epoch(self, report: Callable[[Epoch], object]) -> Epoch:
        """Train for one epoch, calling `report` after each batch."""
        self.epochs += 1
        epoch = Epoch()
        torch.manual_seed(self.epochs)  # every loader draws the same order
        began = asked = time.perf_counter()
        batches = iter(self.loader)
        while True:
            batch = next(batches, None)
            got = time.perf_counter()
            epoch.seconds = got - began
            epoch.waited_s += got - asked
            if batch is None:
                return epoch
            epoch.right += self._step(*batch)
            epoch.images += len(batch[1])
            report(epoch)
            asked = time.perf_counter()

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> int:
        """Learn from a batch; return how many images were classified correctly."""
        scores = self._network(images)
        weights = list(self._network.parameters())
        gradients = torch.autograd.grad(functional.cross_entropy(scores, labels), weights)
        with torch.no_grad():  # by hand: the optimizers of torch import its compiler, which takes two seconds
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=LEARNING_RATE)
        return int((scores.argmax(dim=1) == labels).sum())


def peak_mb(opened: Callable[[], LoaderLike]) -> float | None:
    """Train for one epoch; return the most memory of all processes that was seen after a batch, None if unknown."""
    loader, found = opened(), [0]
    try:
        Training(loader).epoch(lambda _: found.append(load.pss_bytes() or 0))
    finally:
        close(loader)
    return max(found) / 1e6 or None
