"""Images that a network trains on: their files, and the loaders that read them."""

from __future__ import annotations

import functools
import itertools
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset, RandomSampler

from feedline import DataLoader, images
from feedline.datasets import ImageFolder, TarDataset
from feedline.tools.measure.harness import FEEDLINE, TORCH
from feedline.tools.measure.jpegs import CROP, IMAGE_HEIGHT, IMAGE_WIDTH, cropped_opencv

if TYPE_CHECKING:
    from PIL.Image import Image

Pair = tuple[torch.Tensor, torch.Tensor]
"""Images and labels of a batch."""
_SHARDS = 8
_MEAN = torch.tensor(images.IMAGENET_MEAN).view(1, 3, 1, 1) * 255
_STD = torch.tensor(images.IMAGENET_STD).view(1, 3, 1, 1) * 255


@dataclass(frozen=True)
class Row:
    """A network, and the data and loader that feed it."""

    network: str
    """Name in torchvision. A following "compiled" means that `torch.compile` compiles the network, "first" that it
    trains on a stream of high priority."""
    source: str = "folder"
    """The form of the images: "folder" or "tar"."""
    decode: str = "gpu"
    """The decoder: "gpu" or "cpu" for feedline's images; "pillow" or "opencv" for datasets as people write them."""
    library: str = FEEDLINE
    workers: int = 2


def synthetic(batch_size: int) -> tuple[Iterator[Pair], None]:
    """Return one batch over and over; it is already on the GPU."""
    batch = torch.randn((batch_size, 3, CROP, CROP), device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (batch_size,), device="cuda")
    return itertools.repeat((batch, labels)), None


def opened(row: Row, data: Path, batch_size: int) -> tuple[Iterable[Pair], object]:
    """Return an endless stream of batches on the GPU, and its loader."""
    if row.library == TORCH:
        by_hand = ByHand(data, row.decode)
        endless = RandomSampler(by_hand, replacement=True, num_samples=10_000_000)
        torchs = torch.utils.data.DataLoader(
            by_hand, batch_size, sampler=endless, num_workers=row.workers, pin_memory=True, persistent_workers=True
        )
        return (on_device(batch, labels) for batch, labels in torchs), torchs
    if row.decode in ("pillow", "opencv"):
        ours = DataLoader(
            ByHand(data, row.decode), batch_size, shuffle=True, num_workers=row.workers, seed=0, device="cuda"
        )
        endless_batches = itertools.chain.from_iterable(ours.virtual_epochs(10_000_000))
        return (on_device(batch, labels) for batch, labels in endless_batches), ours
    pipeline = images.Compose(
        [images.RandomResizedCrop(CROP), images.HorizontalFlip(), images.Normalize(dtype="bfloat16")]
    )
    if row.source == "tar":
        shards = str(data / "shards" / "*.tar")
        dataset: TarDataset | ImageFolder = TarDataset(shards, ("jpg", "cls"), transform=pipeline.decoding(row.decode))
    else:
        dataset = ImageFolder(data / "folder", decode=row.decode, transform=pipeline)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=row.workers, seed=0, device="cuda")
    return itertools.chain.from_iterable(loader.virtual_epochs(10_000_000)), loader


def on_device(batch: torch.Tensor, labels: torch.Tensor) -> Pair:
    """Copy a batch to the GPU without waiting, and normalise it there if it is not normalised yet."""
    batch, labels = batch.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
    if batch.dtype is torch.uint8:
        mean, std = _on_gpu()
        batch = batch.permute(0, 3, 1, 2).float().sub_(mean).div_(std)
    return batch.to(torch.bfloat16), labels


@functools.cache
def _on_gpu() -> tuple[torch.Tensor, torch.Tensor]:
    return _MEAN.to("cuda"), _STD.to("cuda")


class ByHand(Dataset[tuple[torch.Tensor, int]]):
    """Images as people load them: Pillow and torchvision's transforms to float32, or OpenCV to uint8."""

    def __init__(self, data: Path, decoder: str) -> None:
        self.paths = sorted(str(path) for path in (data / "folder").rglob("*.jpg"))
        self.decoder = decoder
        self.transform: Callable[[Image], torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        label = int(Path(path).parent.name)
        if self.decoder == "opencv":
            return torch.from_numpy(_with_opencv(path)), label
        if self.transform is None:
            self.transform = _torchvision_pipeline()
        from PIL import Image

        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def _torchvision_pipeline() -> Callable[[Image], torch.Tensor]:
    from torchvision import transforms

    pipeline: Callable[[Image], torch.Tensor] = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD),
        ]
    )
    return pipeline


def _with_opencv(path: str) -> object:
    image = cropped_opencv(path, random.Random())
    return np.ascontiguousarray(image[:, ::-1]) if random.random() < 0.5 else image


def write_images(data: Path, count: int) -> None:
    """Write `count` JPEG files of 500 x 375, about 100 KB each, into a folder with ten classes, and into shards."""
    for label in range(10):
        (data / "folder" / f"{label:02d}").mkdir(parents=True, exist_ok=True)
    (data / "shards").mkdir(exist_ok=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(functools.partial(_write_shard, data, count), range(_SHARDS)))


def _write_shard(data: Path, count: int, shard: int) -> None:
    from PIL import Image

    dice = np.random.default_rng(shard)
    with tarfile.open(data / "shards" / f"{shard:03d}.tar", "w") as archive:
        for number in range(shard, count, _SHARDS):
            coarse = Image.fromarray(dice.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
                (IMAGE_WIDTH, IMAGE_HEIGHT), 3
            )
            pixels = np.asarray(coarse).astype(np.int16) + dice.normal(0, 22, (IMAGE_HEIGHT, IMAGE_WIDTH, 3)).astype(
                np.int16
            )
            path = data / "folder" / f"{number % 10:02d}" / f"{number:06d}.jpg"
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)
            archive.add(path, f"{number:06d}.jpg")
            label = data / "shards" / f".{number:06d}.cls"
            label.write_text(str(number % 10))
            archive.add(label, f"{number:06d}.cls")
            label.unlink()
