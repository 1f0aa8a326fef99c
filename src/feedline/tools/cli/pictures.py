"""The demo's images: JPEG files drawn with numpy, and both ways to read them.

The task is easy to see and takes a few epochs to learn: name the pattern, whatever its colours, scale and exact angle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
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
    for number in range(count):
        label = number % len(PATTERNS)
        path = folder / f"{number:05d}-{PATTERNS[label].replace(' ', '-')}.jpg"
        draw_picture(label, np.random.default_rng(number)).save(path, quality=90)
        yield


def draw_picture(label: int, rng: np.random.Generator) -> Image.Image:
    """Draw waves in two colours, and noise; `across` and `along` are distances in radians of the wave."""
    y, x = (axis.astype(np.float32) for axis in np.ogrid[0:IMAGE_HEIGHT, 0:IMAGE_WIDTH])
    angle, scale = ANGLES[label] + rng.normal(0, 0.12), 2 * math.pi / rng.uniform(24, 48)
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)
    across = cosine * x + sine * y + rng.uniform(0, 2 * math.pi)
    along = cosine * y - sine * x + rng.uniform(0, 2 * math.pi)
    waves = np.sin(across) * (np.sin(along) if PATTERNS[label] == "checks" else 1)
    dark, bright = rng.uniform(30, 110, 3).astype(np.float32), rng.uniform(145, 225, 3).astype(np.float32)
    image = (dark + bright) / 2 + waves[..., None] * ((bright - dark) / 2)
    image += NOISE * rng.standard_normal((IMAGE_HEIGHT, IMAGE_WIDTH, 1), dtype=np.float32)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


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

    def __repr__(self) -> str:
        return f"UsualPictures({len(self)} pictures of {len(PATTERNS)} patterns)"
