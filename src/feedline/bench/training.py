"""How much of a GPU's training rate is left when images have to be loaded: a share of the rate on synthetic data.

A network trains on batches that lie on the GPU already; then on the same number of images that a loader reads, decodes,
crops at random, flips and normalises. Only the steady state counts: the first two of the windows are left out, and the
clock is the GPU's, so that nobody waits for it in between.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, RandomSampler

from feedline import DataLoader, images
from feedline._optional import require
from feedline.bench import load
from feedline.bench.harness import FEEDLINE, TORCH, Case, Entry, Figures, Outcome, Side, add_share
from feedline.bench.jpegs import CROP, IMAGE_HEIGHT, IMAGE_WIDTH, cropped_opencv
from feedline.bench.rows import Column
from feedline.datasets import ImageFolder, TarDataset
from feedline.device.torch_target import widen_queues
from feedline.errors import BadOption

SYNTHETIC = "synthetic"
_WINDOW = 10
"""Steps of training between two readings of the clock."""
_LEFT_OUT = 2
_SHARDS = 8
_MEAN = torch.tensor(images.IMAGENET_MEAN).view(1, 3, 1, 1) * 255
_STD = torch.tensor(images.IMAGENET_STD).view(1, 3, 1, 1) * 255


@dataclass(frozen=True)
class Row:
    """What feeds the network."""

    network: str
    """Of torchvision; "compiled" behind it for one that `torch.compile` has been at."""
    source: str = "folder"
    """"folder" or "tar"."""
    decode: str = "gpu"
    """"gpu" or "cpu" for feedline's images; "pillow" or "opencv" for datasets as people write them."""
    library: str = FEEDLINE
    workers: int = 2


TABLE = (
    *(Row("resnet50", decode="gpu", workers=workers) for workers in (1, 2)),
    Row("resnet50", "tar", "gpu", workers=2),
    *(Row("resnet50", decode="cpu", workers=workers) for workers in (8, 14)),
    *(Row("resnet50", decode="opencv", library=TORCH, workers=workers) for workers in (8, 14)),
    *(Row("resnet50", decode="pillow", library=TORCH, workers=workers) for workers in (8, 14)),
    *(Row("resnet18", decode="gpu", workers=workers) for workers in (4, 8)),
    *(Row("resnet50 compiled", decode="gpu", workers=workers) for workers in (2, 4)),
)
"""What `feedline bench gpu` measures."""

COLUMNS = (
    Column("images_per_s", "images/s", with_range=True),
    Column("share", "share", digits=3, with_range=True),
    Column("loader_cpu_s_per_1000", "CPU s\nper 1,000", digits=3),
    Column("first_batch_s", "first\nbatch s", digits=2),
    Column("host_mb", "host\nMB"),
    Column("loader_gpu_mb", "GPU\nMB"),
)


# Any, throughout: networks, batches and loaders of torch.
def entries(rows: Sequence[Row], data: Path, *, batch_size: int, seconds: float) -> list[Entry]:
    """Describe what is measured: for each network its own rate, then all that feeds it."""
    made: list[Entry] = []
    for network in dict.fromkeys(row.network for row in rows):
        synthetic = Case(network=network, source="-", decode="-", workers=0)
        measure = functools.partial(_measure, network, _synthetic, batch_size, seconds)
        made.append(Entry(synthetic, Side(SYNTHETIC), measure))
        for row in rows:
            if row.network == network:
                case = Case(network=network, source=row.source, decode=row.decode, workers=row.workers)
                opened = functools.partial(_opened, row, data)
                made.append(
                    Entry(case, Side(row.library), functools.partial(_measure, network, opened, batch_size, seconds))
                )
    return made


def check_gpu() -> None:
    """Refuse to measure where there is nothing to measure with.

    Raises:
        BadOption: there is no GPU.
        MissingExtra: torchvision is not installed.
    """
    widen_queues()
    if not torch.cuda.is_available():
        raise BadOption("There is no GPU that torch can use here, and its rate is what everything is compared with.")
    require("torchvision.models", extra="gpu", purpose="Training on a GPU")


def add_shares(outcomes: Sequence[Outcome]) -> None:
    """Add to each outcome which share of the synthetic rate of its network it reached, and what it cost beside that."""
    for outcome in outcomes:
        base = next(
            other
            for other in outcomes
            if other.side.library == SYNTHETIC and other.case["network"] == outcome.case["network"]
        )
        add_share(outcome, base, "images_per_s", "share")
        for ours, theirs in zip(outcome.rounds, base.rounds, strict=True):
            for figure in ("cpu_s_per_1000", "gpu_mb"):
                ours[f"loader_{figure}"] = (ours[figure] or 0.0) - (theirs[figure] or 0.0)


@functools.cache
def _trainer(network: str, batch_size: int) -> Callable[[Any, Any], None]:
    """Return a function that trains a network with one batch."""
    models = require("torchvision.models", extra="gpu", purpose="Training on a GPU")
    name, _, compiled = network.partition(" ")
    try:
        model: Any = getattr(models, name)()
    except AttributeError as exc:
        raise BadOption(
            f"--network {name} is no network of torchvision. Give resnet18 or resnet50, for example."
        ) from exc
    model = model.to("cuda", dtype=torch.bfloat16, memory_format=torch.channels_last)
    if compiled:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    criterion = torch.nn.CrossEntropyLoss()

    def train(batch: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(batch.contiguous(memory_format=torch.channels_last)), labels).backward()
        optimizer.step()

    torch.backends.cudnn.benchmark = True
    for batch, labels in itertools.islice(_synthetic(batch_size)[0], 15):
        train(batch, labels)
    torch.cuda.synchronize()
    return train


def _measure(
    network: str, opened: Callable[[int], tuple[Iterable[Any], Any]], batch_size: int, seconds: float
) -> Figures:
    train = _trainer(network, batch_size)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun_s = time.perf_counter()
    batches, loader = opened(batch_size)
    iterator = iter(batches)
    events: list[Any] = []
    first_s, cpu, cpu_from = 0.0, {}, 0
    for step in itertools.count():
        batch, labels = next(iterator)
        if step == 0:
            first_s = time.perf_counter() - begun_s
        if step % _WINDOW == 0:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)
            if len(events) == _LEFT_OUT + 1:
                event.synchronize()
                from_s, cpu, cpu_from = time.perf_counter(), load.cpu_seconds(load.process_tree()), step
            elif len(events) > _LEFT_OUT + 2 and time.perf_counter() - from_s > seconds:
                break
        train(batch, labels)
    torch.cuda.synchronize()
    used_s = load.cpu_used(cpu, load.cpu_seconds(load.process_tree()))
    counted = events[_LEFT_OUT:]
    elapsed_s = counted[0].elapsed_time(counted[-1]) / 1000
    pss = load.pss_bytes()
    figures: Figures = {
        "images_per_s": (len(counted) - 1) * _WINDOW * batch_size / elapsed_s,
        "cpu_s_per_1000": used_s / ((step - cpu_from) * batch_size) * 1000,
        "first_batch_s": first_s,
        "gpu_mb": torch.cuda.max_memory_allocated() / 1e6,
        "host_mb": None if pss is None else pss / 1e6,
    }
    del batch, labels, iterator, batches
    if hasattr(loader, "close"):
        loader.close()
    del loader
    gc.collect()
    return figures


def _synthetic(batch_size: int) -> tuple[Iterator[Any], None]:
    batch = torch.randn((batch_size, 3, CROP, CROP), device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (batch_size,), device="cuda")
    return itertools.repeat((batch, labels)), None


def _opened(row: Row, data: Path, batch_size: int) -> tuple[Iterable[Any], Any]:
    if row.library == TORCH:
        dataset: Any = ByHand(data, row.decode)
        endless = RandomSampler(dataset, replacement=True, num_samples=10_000_000)
        loader: Any = torch.utils.data.DataLoader(
            dataset, batch_size, sampler=endless, num_workers=row.workers, pin_memory=True, persistent_workers=True
        )
        return (on_device(batch, labels) for batch, labels in loader), loader
    if row.decode in ("pillow", "opencv"):
        loader = DataLoader(
            ByHand(data, row.decode), batch_size, shuffle=True, num_workers=row.workers, seed=0, device="cuda"
        )
        endless_batches = itertools.chain.from_iterable(loader.virtual_epochs(10_000_000))
        return (on_device(batch, labels) for batch, labels in endless_batches), loader
    pipeline = images.Compose(
        [images.RandomResizedCrop(CROP), images.HorizontalFlip(), images.Normalize(dtype="bfloat16")]
    )
    if row.source == "tar":
        shards = str(data / "shards" / "*.tar")
        dataset = TarDataset(shards, ("jpg", "cls"), transform=pipeline.decoding(row.decode))
    else:
        dataset = ImageFolder(data / "folder", decode=row.decode, transform=pipeline)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=row.workers, seed=0, device="cuda")
    return itertools.chain.from_iterable(loader.virtual_epochs(10_000_000)), loader


def on_device(batch: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a batch without waiting, and normalise it there if that is left to do."""
    batch, labels = batch.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
    if batch.dtype is torch.uint8:
        mean, std = _on_gpu()
        batch = batch.permute(0, 3, 1, 2).float().sub_(mean).div_(std)
    return batch.to(torch.bfloat16), labels


@functools.cache
def _on_gpu() -> tuple[torch.Tensor, torch.Tensor]:
    return _MEAN.to("cuda"), _STD.to("cuda")


class ByHand(Dataset[Any]):
    """Images as people load them: Pillow and torchvision's transforms to float32, or OpenCV to uint8."""

    def __init__(self, data: Path, decoder: str) -> None:
        self.paths = sorted(str(path) for path in (data / "folder").rglob("*.jpg"))
        self.decoder = decoder
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        label = int(Path(path).parent.name)
        if self.decoder == "opencv":
            return torch.from_numpy(_with_opencv(path)), label
        if self.transform is None:
            self.transform = _torchvision_pipeline()
        from PIL import Image

        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def _torchvision_pipeline() -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD),
        ]
    )


def _with_opencv(path: str) -> Any:
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
