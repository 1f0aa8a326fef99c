"""The demo's images: JPEG files drawn with numpy, and both ways to read them.

The task is easy to see and takes a few epochs to learn: name the pattern, whatever its colours, scale and exact angle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from feedline import images
from feedline.datasets import ImageFolder
from feedline.tools.measure.jpegs import CROP, IMAGE_HEIGHT, IMAGE_WIDTH, JpegFiles

PATTERNS = ("upright stripes", "level stripes", "slanted stripes", "checks")
ANGLES = (0.0, math.pi / 2, math.pi / 4, 0.0)
NOISE = 40.0  # in grey levels; it makes the files as large as photos of this size


def write_pictures(folder: Path, count: int) -> Iterator[None]:
    """Write pictures, the patterns in turn, into a new folder; yield after each. File names contain the labels."""
    folder.mkdir()

    def write(number: int) -> None:
        label = number % len(PATTERNS)
        path = folder / f"{number:05d}-{PATTERNS[label].replace(' ', '-')}.jpg"
        draw_picture(label, np.random.default_rng(number)).save(path, quality=90)

    with ThreadPoolExecutor(2) as threads:
        yield from threads.map(write, range(count))


def draw_picture(label: int, rng: np.random.Generator) -> Image.Image:
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


def label_of(path: str) -> int:
    """Read the label of a picture from its file name."""
    return PATTERNS.index(Path(path).stem.partition("-")[2].replace("-", " "))


def picture_folder(folder: Path) -> ImageFolder:
    """Return the pictures as a feedline dataset: (random crop as float32 CHW, label), in the order of their numbers."""
    recipe = images.Compose([images.RandomResizedCrop(CROP), images.HorizontalFlip(), images.Normalize()])
    return ImageFolder(folder, labels=label_of, transform=recipe)


class UsualPictures:
    """The pictures as a dataset for torch's loader, in the usual way: Pillow and numpy do the same work."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.iterdir())
        self.files = JpegFiles(paths, "pillow", len(paths))
        self.labels = [label_of(path) for path in self.files.paths]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        again = random.randrange(1 << 20)  # each pass reads the file again, with another crop
        return self.files[index + again * len(self)], self.labels[index]
