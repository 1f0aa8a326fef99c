"""The demo's images: JPEG files that numpy draws, and the dataset that reads them.

The task is easy to see and takes a few epochs to learn: name the pattern, whatever its colours, scale, light and exact
angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from feedline import images
from feedline.datasets import ImageFolder

PATTERNS = ("upright stripes", "level stripes", "slanted stripes", "checks")
ANGLES = (0.0, np.pi / 2, np.pi / 4, 0.0)
PICTURE_SIZE = (320, 240)
SAMPLE_SIZE = (64, 48)
NOISE = 40.0  # in grey levels; also what makes the files as large as a camera's (guess, not measured)

Floats = NDArray[np.float32]


def write_pictures(folder: Path, count: int, *, seed: int = 0) -> None:
    """Write `count` pictures, the patterns in turn."""
    for number in range(count):
        write_picture(folder, number, seed=seed)


def write_picture(folder: Path, number: int, *, seed: int = 0) -> None:
    """Write one picture. A file that is already there is kept, so a second run costs nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = picture_path(folder, number)
    if not path.exists():
        draw_picture(number % len(PATTERNS), np.random.default_rng((seed, number))).save(path, quality=90)


def picture_path(folder: Path, number: int) -> Path:
    """Return the path of one picture; the file name contains the label."""
    return folder / f"{number:05d}-{PATTERNS[number % len(PATTERNS)].replace(' ', '-')}.jpg"


def draw_picture(label: int, rng: np.random.Generator) -> Image.Image:
    """Draw one pattern in two colours, under uneven light and with noise."""
    width, height = PICTURE_SIZE
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    light = 1 + rng.uniform(-0.3, 0.3) * (x / width - 0.5) + rng.uniform(-0.3, 0.3) * (y / height - 0.5)
    weight = 0.5 + 0.5 * _pattern(label, x, y, rng)
    dark, bright = _two_colours(rng)
    image = (dark + (bright - dark) * weight[..., None]) * light[..., None]
    image += NOISE * rng.standard_normal((height, width, 1), dtype=np.float32)
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def _two_colours(rng: np.random.Generator) -> Floats:
    """Pick two colours that can be told apart."""
    while True:
        colours = rng.uniform(30, 225, size=(2, 3)).astype(np.float32)
        if np.abs(colours[0] - colours[1]).sum() > 120:
            return colours


def _pattern(label: int, x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Compute waves between -1 and 1; `across` and `along` are distances in radians of the wave."""
    angle = ANGLES[label] + rng.normal(0, 0.12)
    scale = 2 * np.pi / rng.uniform(24, 48)
    across = scale * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 2 * np.pi)
    along = scale * (y * np.cos(angle) - x * np.sin(angle)) + rng.uniform(0, 2 * np.pi)
    waves = np.sin(across) * np.sin(along) if PATTERNS[label] == "checks" else np.sin(across)
    return np.asarray(waves, dtype=np.float32)


def picture_folder(folder: Path) -> ImageFolder:
    """Return the pictures as a feedline dataset: (float32 CHW, label), in the order of their numbers."""
    width, height = SAMPLE_SIZE
    scale = images.Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    pipeline = images.Compose([images.Resize((height, width)), scale])
    return ImageFolder(folder, labels=label_of, transform=pipeline)


def label_of(path: str) -> int:
    """Read the label of a picture from the name of its file."""
    return PATTERNS.index(Path(path).stem.partition("-")[2].replace("-", " "))


class PictureDataset:
    """Reads, decodes and scales one picture per sample with Pillow, in the usual way: (float32 CHW tensor, label)."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self.paths = [picture_path(folder, number) for number in numbers]
        self.labels = [number % len(PATTERNS) for number in numbers]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize(SAMPLE_SIZE, Image.Resampling.BILINEAR)
        pixels = np.asarray(small, dtype=np.float32) / 127.5 - 1
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), self.labels[index]

    def __repr__(self) -> str:
        return f"PictureDataset({len(self)} pictures of {len(PATTERNS)} patterns)"
