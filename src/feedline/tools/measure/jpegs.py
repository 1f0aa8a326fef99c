"""JPEG files, and the same work on them by popular decoders and by `feedline.images`.

The datasets are in their own module because workers started by spawn or forkserver import them by name.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from feedline import images
from feedline.datasets import FileDataset
from feedline.datasets.derived.split import Subset
from feedline.tools.measure import rows
from feedline.tools.measure.harness import Entry

IMAGE_WIDTH, IMAGE_HEIGHT, CROP = 500, 375, 224
_MEAN = np.array(images.IMAGENET_MEAN, dtype=np.float32)
_STD = np.array(images.IMAGENET_STD, dtype=np.float32)


def write_jpegs(count: int, folder: Path) -> None:
    """Write `count` synthetic JPEGs of 500x375, about 100 KB each with a noise-like texture, into a new folder."""
    from PIL import Image

    folder.mkdir()
    texture = np.random.default_rng(0).normal(0, 25, (IMAGE_HEIGHT * 2, IMAGE_WIDTH * 2, 3))
    ramp = np.linspace(60, 190, IMAGE_WIDTH)[None, :, None]
    for number in range(count):
        dice = random.Random(number)
        top, left = dice.randrange(IMAGE_HEIGHT), dice.randrange(IMAGE_WIDTH)
        noise = texture[top : top + IMAGE_HEIGHT, left : left + IMAGE_WIDTH]
        pixels = np.clip(ramp + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06d}.jpg", quality=90)


class JpegFiles(Dataset[torch.Tensor]):
    """JPEG files read, decoded, cropped at random to 224x224, flipped and normalised to float32 CHW.

    The crop depends on the index alone, so every loader does the same work. `length` may exceed the number of files:
    they are then read again.
    """

    def __init__(self, paths: list[Path], decoder: str, length: int) -> None:
        self.paths = [str(path) for path in paths]
        self.length = length
        self.decoder = decoder

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index % len(self.paths)]
        dice = random.Random(index)
        pixels = _CROPPED[self.decoder](path, dice)
        if dice.random() < 0.5:
            pixels = pixels[:, ::-1]
        scaled = pixels.astype(np.float32)
        scaled *= 1 / (255 * _STD)
        scaled -= _MEAN / _STD
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))


def _crop_box(dice: random.Random) -> tuple[int, int, int, int]:
    """Draw left, top, width, height of a crop with 8 to 100 % of the area and a ratio of 3:4 to 4:3."""
    for _ in range(10):
        area = IMAGE_WIDTH * IMAGE_HEIGHT * dice.uniform(0.08, 1.0)
        aspect = dice.uniform(3 / 4, 4 / 3)
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if width <= IMAGE_WIDTH and height <= IMAGE_HEIGHT:
            return dice.randint(0, IMAGE_WIDTH - width), dice.randint(0, IMAGE_HEIGHT - height), width, height
    return 0, 0, IMAGE_WIDTH, IMAGE_HEIGHT


def _cropped_pillow(path: str, dice: random.Random) -> NDArray[np.uint8]:
    from PIL import Image

    left, top, width, height = _crop_box(dice)
    with Image.open(path) as image:
        box = (left, top, left + width, top + height)
        return np.asarray(image.convert("RGB").resize((CROP, CROP), Image.Resampling.BILINEAR, box=box))


def cropped_opencv(path: str, dice: random.Random) -> NDArray[np.uint8]:
    """Return a random crop of one of these files, resized, with the axes height, width, colour."""
    import cv2

    encoded = np.fromfile(path, dtype=np.uint8)
    return _cropped(cv2.cvtColor(cv2.imdecode(encoded, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB), dice)


def _cropped_simplejpeg(path: str, dice: random.Random) -> NDArray[np.uint8]:
    import simplejpeg

    return _cropped(simplejpeg.decode_jpeg(Path(path).read_bytes()), dice)


def _cropped(image: NDArray[np.uint8], dice: random.Random) -> NDArray[np.uint8]:
    import cv2

    cv2.setNumThreads(0)  # the workers are the parallelism, for both loaders
    left, top, width, height = _crop_box(dice)
    part = image[top : top + height, left : left + width]
    resized: NDArray[np.uint8] = cv2.resize(part, (CROP, CROP), interpolation=cv2.INTER_LINEAR)
    return resized


_CROPPED = {"pillow": _cropped_pillow, "opencv": cropped_opencv, "simplejpeg": _cropped_simplejpeg}
DECODERS = tuple(_CROPPED)


# object: a feedline dataset.
def image_pipeline(paths: list[Path], length: int) -> object:
    """Return a dataset that does the work of `JpegFiles` with `feedline.images`, with its own random crops."""
    pipeline = images.Compose([images.RandomResizedCrop(CROP), images.HorizontalFlip(), images.Normalize()])
    files = FileDataset(paths, "data", transform=pipeline)
    return Subset(files, np.arange(length) % len(files))


def entries(paths: list[Path], length: int, arguments: argparse.Namespace) -> Iterator[Entry]:
    """Yield `feedline.images` behind feedline's loader beside torch's loader with each decoder."""
    ours = image_pipeline(paths, length)
    for decoder in DECODERS:
        ways = rows.both(JpegFiles(paths, decoder, length), ours, shuffle=True)
        yield from rows.entries(arguments, {"decoder": f"feedline : {decoder}"}, ways)
