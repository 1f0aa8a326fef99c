"""`feedline demo`: make pictures, train on them through feedline, compare with torch's loader."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Subset

from feedline import DataLoader
from feedline.tools.cli.bench import WORKER_COUNT, compare
from feedline.tools.cli.pictures import PATTERNS, PictureDataset, picture_folder, write_picture
from feedline.types.screen import Screen, Styled
from feedline.types.terminal import open_screen

BATCH_SIZE = 32
BUDGET_S = 55.0
"""Duration of the demo, even on a slow machine, unless the user sets the amount of work. Imports come on top."""
DRAWING_S = 8.0
"""Seconds after the start at which drawing should end, if there are enough pictures to learn from."""
TRAINING_S = 24.0
"""Seconds after the start at which training should end: the comparison needs the rest."""
LEAST_IMAGES, MOST_IMAGES = 160, 400
MOST_EPOCHS = 8
MOST_ROUNDS = 5


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch."""

    number: int
    loss: float
    """Mean over the training samples."""
    accuracy: float
    """Share of the held-out samples that the network classifies correctly."""
    images_per_s: float
    """Training only, waiting for data included."""


def build_network() -> nn.Module:
    """Build a network of three small convolutions, a global maximum and a linear layer."""
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


Pictures = Subset[tuple[torch.Tensor, int]]


def count_batches(pictures: Pictures) -> int:
    """Count the batches of one epoch."""
    return -(-len(pictures) // BATCH_SIZE)


def train(
    pictures: Pictures,
    held_out: Pictures,
    *,
    epochs: int,
    worker_count: int,
    report: Callable[[], object],
) -> Generator[Epoch, None, None]:
    """Train for `epochs`, calling `report` after each batch and yielding after each epoch."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = build_network().to(device)
    steps = count_batches(pictures) * epochs
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    options: dict[str, Any] = {"num_workers": worker_count, "persistent_workers": worker_count > 0, "device": device}
    loader = DataLoader(pictures, batch_size=BATCH_SIZE, shuffle=True, **options)
    checks = DataLoader(held_out, batch_size=64, **options)
    with contextlib.closing(loader), contextlib.closing(checks):
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
            images_per_s = len(pictures) / (time.perf_counter() - begin)
            yield Epoch(number, total_loss / len(pictures), measure_accuracy(network, checks), images_per_s)


@torch.no_grad()
def measure_accuracy(network: nn.Module, loader: DataLoader[tuple[torch.Tensor, int]]) -> float:
    """Measure the share of samples that the network classifies correctly."""
    network.eval()
    right = total = 0
    for images, labels in loader:
        right += int((network(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    return right / total


HELD_OUT = 5  # one group of pictures in five is held out to measure accuracy
BAR_WIDTH = 24


def run(arguments: argparse.Namespace) -> None:
    """Run the whole demo; without a `folder` the pictures are deleted at the end."""
    screen, began_s = open_screen(), time.monotonic()
    drawn_until_s = math.inf if arguments.images else began_s + DRAWING_S
    compared_until_s = math.inf if arguments.rounds else began_s + BUDGET_S
    trained_until_s = math.inf if arguments.epochs else began_s + TRAINING_S
    arguments.rounds = arguments.rounds or MOST_ROUNDS
    place: AbstractContextManager[str | Path] = (
        nullcontext(arguments.folder) if arguments.folder is not None else TemporaryDirectory(prefix="feedline-demo-")
    )
    with place as name:
        home = Path(name)
        images = make_pictures(home, arguments.images or MOST_IMAGES, screen, until_s=drawn_until_s)
        train_on_pictures(home, images, arguments.epochs or MOST_EPOCHS, screen, until_s=trained_until_s)
        screen.line("\nThe same dataset objects through both loaders, in turns:")
        compare(PictureDataset(home, range(images)), arguments, until_s=compared_until_s)


def make_pictures(
    folder: Path,
    images: int,
    screen: Screen,
    *,
    until_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Fill `folder`, showing progress; return the number of pictures: fewer if `until_s` comes first."""
    with screen.bar() as bar:
        bar.begin("drawing pictures", images)
        for count in range(1, images + 1):
            write_picture(folder, count - 1)
            bar.update(advance=1)
            if count >= LEAST_IMAGES and clock() > until_s:
                images = count
                break
    screen.line(f"{images} JPEG pictures of {len(PATTERNS)} patterns: which is which?")
    return images


def train_on_pictures(folder: Path, images: int, epochs: int, screen: Screen, *, until_s: float = math.inf) -> None:
    """Train, showing every batch in the bar and every epoch as a line, until `until_s`; see `within`."""
    numbers = range(images)
    pictures: Any = picture_folder(folder)
    # Patterns take turns over the numbers, so whole groups are held out to keep them balanced.
    held_out = Subset(pictures, [number for number in numbers if number // len(PATTERNS) % HELD_OUT == 0])
    trained = Subset(pictures, [number for number in numbers if number // len(PATTERNS) % HELD_OUT != 0])
    screen.line(f"training on {len(trained)}, checking on {len(held_out)}, {WORKER_COUNT} workers\n")
    with screen.bar() as bar:
        bar.begin("training", epochs * count_batches(trained))
        advance = partial(bar.update, advance=1)
        training = train(trained, held_out, epochs=epochs, worker_count=WORKER_COUNT, report=advance)
        for epoch in within(until_s, training):
            screen.line(*_describe(epoch))
    if epoch.number < epochs:
        screen.line(
            f"Stopped after {epoch.number} of {epochs} epochs: time is short. --epochs {epochs} trains them all."
        )


def within(
    until_s: float, epochs: Generator[Epoch, None, None], clock: Callable[[], float] = time.monotonic
) -> Iterator[Epoch]:
    """Yield epochs, at least one, until the next would end after `until_s` if it took as long as the longest so far."""
    longest_s, began_s = 0.0, clock()
    with contextlib.closing(epochs):
        for epoch in epochs:
            yield epoch
            ended_s = clock()
            longest_s, began_s = max(longest_s, ended_s - began_s), ended_s
            if ended_s + longest_s > until_s:
                return


def _describe(epoch: Epoch) -> tuple[Styled, ...]:
    filled = round(epoch.accuracy * BAR_WIDTH)
    return (
        f"epoch {epoch.number:2}  loss {epoch.loss:.3f}  accuracy ",
        (f"{epoch.accuracy:4.0%}", "bold"),
        " ",
        ("━" * filled, "green"),
        ("─" * (BAR_WIDTH - filled), "dim"),
        f"  {epoch.images_per_s:,.0f} images/s",
    )
