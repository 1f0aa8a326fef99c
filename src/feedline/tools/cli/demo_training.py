"""The demo's training: drawn JPEG files, both ways to read them, and a small network that learns their patterns.

The task is easy to see and takes a few epochs to learn: name the pattern, whatever its colours, scale and exact angle.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from feedline import images
from feedline.datasets import ImageFolder
from feedline.system.shown import percent
from feedline.tools.measure import load
from feedline.tools.measure.harness import LoaderLike, close
from feedline.tools.measure.jpegs import CROP, IMAGE_HEIGHT, IMAGE_WIDTH, JpegFiles

PATTERNS = ("upright stripes", "level stripes", "slanted stripes", "checks")
ANGLES = (0.0, math.pi / 2, math.pi / 4, 0.0)
NOISE = 40.0  # in grey levels; it makes the files as large as photos of this size
LEARNING_RATE = 0.05


def write_pictures(folder: Path, count: int) -> Iterator[None]:
    """Write pictures, the patterns in turn, into a new folder; yield after each. File names contain the labels."""
    folder.mkdir()

    def write(number: int) -> None:
        label = number % len(PATTERNS)
        path = folder / f"{number:05d}-{PATTERNS[label].replace(' ', '-')}.jpg"
        _draw(label, np.random.default_rng(number)).save(path, quality=90)

    with ThreadPoolExecutor(2) as threads:
        yield from threads.map(write, range(count))


def _draw(label: int, rng: np.random.Generator) -> Image.Image:
    """Draw waves in two colours, and noise."""
    y, x = (axis.astype(np.float32) for axis in np.ogrid[0:IMAGE_HEIGHT, 0:IMAGE_WIDTH])
    angle, scale = ANGLES[label] + rng.normal(0, 0.12), 2 * math.pi / rng.uniform(24, 48)
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)  # distances in the picture into radians of the wave
    waves = np.sin(cosine * x + sine * y + rng.uniform(0, 2 * math.pi))
    if PATTERNS[label] == "checks":
        waves *= np.sin(cosine * y - sine * x + rng.uniform(0, 2 * math.pi))
    noise = NOISE * rng.standard_normal(waves.shape, dtype=np.float32)
    dark, bright = rng.uniform(30, 110, 3).tolist(), rng.uniform(145, 225, 3).tolist()
    planes = [(low + high) / 2 + waves * ((high - low) / 2) + noise for low, high in zip(dark, bright, strict=True)]
    return Image.fromarray(np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8))


def _label_of(path: str) -> int:
    return PATTERNS.index(Path(path).stem.partition("-")[2].replace("-", " "))


def picture_folder(folder: Path) -> ImageFolder:
    """Return the pictures as a feedline dataset: (random crop as float32 CHW, label), in the order of their numbers."""
    recipe = images.Compose([images.RandomResizedCrop(CROP), images.HorizontalFlip(), images.Normalize()])
    return ImageFolder(folder, labels=_label_of, transform=recipe)


class UsualPictures:
    """The pictures as a dataset for torch's loader, in the usual way: Pillow and numpy do the same work."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.iterdir())
        self.files = JpegFiles(paths, "pillow", len(paths))
        self.labels = [_label_of(path) for path in self.files.paths]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        again = random.randrange(1 << 20)  # each pass reads the file again, with another crop
        return self.files[index + again * len(self)], self.labels[index]


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
