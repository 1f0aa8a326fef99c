"""JPEG files in a folder of classes, and the dataset of them that people write."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline import images
from feedline.tools.measure.jpegs import CROP, IMAGE_HEIGHT, IMAGE_WIDTH, cropped_opencv


def write_pictures(count: int, data: Path) -> None:
    """Write `count` JPEG files of 500 x 375, about 100 KB each, into a folder with ten classes."""
    for label in range(10):
        (data / f"{label:02d}").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write_picture, data), range(count), chunksize=64))


def _write_picture(data: Path, number: int) -> None:
    from PIL import Image

    dice = np.random.default_rng(number)
    coarse = Image.fromarray(dice.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    noise = dice.normal(0, 22, (IMAGE_HEIGHT, IMAGE_WIDTH, 3))
    pixels = np.asarray(coarse.resize((IMAGE_WIDTH, IMAGE_HEIGHT), Image.Resampling.BICUBIC)) + noise
    path = data / f"{number % 10:02d}" / f"{number:06d}.jpg"
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)


class ByHand(Dataset[Any]):
    """Pictures as people load them: Pillow and torchvision's transforms to float32, or OpenCV to uint8."""

    def __init__(self, folder: Path, decoder: str) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        label = int(Path(path).parent.name)
        if self.decoder == "opencv":
            pixels = cropped_opencv(path, random.Random())
            flipped = pixels[:, ::-1] if random.random() < 0.5 else pixels
            return torch.from_numpy(np.ascontiguousarray(flipped)), label
        from PIL import Image

        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label

    @cached_property
    def transform(self) -> Any:  # torchvision has no stubs
        from torchvision import transforms

        return transforms.Compose(
            [
                transforms.RandomResizedCrop(CROP),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD),
            ]
        )
