"""The datasets and loaders of a soak. Each is built from the settings alone, so a resumed program has the same."""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # samples and batches of any form

import numpy as np
from torch.utils.data import Dataset

import feedline
from feedline.datasets import ImageFolder, TarDataset
from feedline.faults import Retry
from tests.drill.datasets import NOISE, Items, make_sample
from tests.drill.digests import digest_of
from tests.drill.troubles import RAISES, Troubles
from tests.soak.settings import Settings

_SHARDS = 12
_PICTURES = 64
_PIXELS = 48
_MANY_RESTARTS = 10**6
_BAD = 6
"""The number of samples that always raise. They are the same in every life, so there is one expected order."""


@dataclass(frozen=True)
class Configuration:
    """A dataset, and the workers that make its samples."""

    name: str
    dataset: str
    """"items", "tar" or "pictures"."""
    engine: str
    workers: int
    start_method: str | None = None
    persistent: bool = True
    device: str | None = None

    @property
    def has_processes(self) -> bool:
        """True if there are processes to kill."""
        return self.engine == "process"


_TABLE = {
    "items-processes": Configuration("items-processes", "items", "process", 2),
    "items-threads": Configuration("items-threads", "items", "thread", 2, persistent=False, device="cpu"),
    "tar-processes": Configuration("tar-processes", "tar", "process", 2, persistent=False),
    "pictures-forkserver": Configuration("pictures-forkserver", "pictures", "process", 2, "forkserver", device="cpu"),
}


def configuration(name: str) -> Configuration:
    """Return the configuration of this name."""
    return _TABLE[name]


def bad_samples(settings: Settings, name: str) -> frozenset[int]:
    """Return the samples that always raise."""
    return frozenset(random.Random(f"{settings.seed}/{name}/bad").sample(range(settings.size), _BAD))


def troubles_of(settings: Settings, name: str, more: dict[int, str], folder: Path, trainer_pid: int) -> Troubles:
    """Return the samples that always raise, and others that cause trouble sometimes."""
    bad = dict.fromkeys(bad_samples(settings, name), RAISES)
    folder.mkdir(parents=True, exist_ok=True)
    return Troubles({**more, **bad}, str(folder), trainer_pid)


def prepare(settings: Settings) -> None:
    """Write the shards and the pictures."""
    folder = Path(settings.folder, "data")
    folder.mkdir(parents=True, exist_ok=True)
    for shard, part in enumerate(np.array_split(np.arange(settings.size), _SHARDS)):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as file:
            for index in part.tolist():
                text = str(index).encode()
                info = tarfile.TarInfo(f"{index:06}.cls")
                info.size = len(text)
                file.addfile(info, io.BytesIO(text))
    from PIL import Image

    (folder / "pictures" / "all").mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(settings.seed)
    for number in range(_PICTURES):
        pixels = draw.integers(0, 255, (_PIXELS, _PIXELS, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / "all" / f"{number:03}.jpg")


class Pictures(Dataset[Any]):
    """JPEG files, decoded and cropped at random; each file serves several indices."""

    def __init__(self, folder: Path, size: int, troubles: Troubles) -> None:
        self.files = ImageFolder(folder)
        self.size = size
        self.troubles = troubles

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.troubles.meet(index)
        picture = np.asarray(self.files[index % len(self.files)][0])
        draw = feedline.rng()
        top, left = draw.integers(0, 16, 2)
        crop = np.ascontiguousarray(picture[top : top + 32, left : left + 32], np.float32)
        return {"index": index, "picture": crop, NOISE: float(draw.random())}


class FromShard:
    """Makes a sample from the number in a shard."""

    def __init__(self, troubles: Troubles) -> None:
        self.troubles = troubles

    def __call__(self, number: Any) -> Any:
        self.troubles.meet(int(number))
        return make_sample("dicts", int(number))


def build_dataset(kind: Configuration, settings: Settings, troubles: Troubles) -> Any:
    """Create the dataset of a configuration."""
    folder = Path(settings.folder, "data")
    if kind.dataset == "items":
        return Items("dicts", settings.size, troubles)
    if kind.dataset == "pictures":
        return Pictures(folder / "pictures", settings.size, troubles)
    shards = TarDataset(str(folder / "*.tar"), "cls", transform=FromShard(troubles))
    return shards.stream(shuffle=True, buffer=50, seed=settings.seed)


def build_loader(kind: Configuration, settings: Settings, dataset: Any, *, plain: bool = False) -> Any:
    """Create the loader of a configuration.

    A `plain` one makes the same batches without processes. As the order of a stream depends on the number of workers,
    it uses as many threads then; other datasets need none.
    """
    is_stream = kind.dataset == "tar"
    workers, engine = kind.workers, kind.engine
    if plain:
        workers, engine = (kind.workers, "thread") if is_stream else (0, "inline")
    options: dict[str, Any] = {
        "shuffle": None if is_stream else True,
        "seed": settings.seed,
        "num_workers": workers,
        "engine": engine,
        "persistent_workers": kind.persistent and workers > 0,
        "multiprocessing_context": None if plain else kind.start_method,
        # A stream cannot repeat a sample.
        "on_error": "skip" if is_stream else Retry(attempts=3, wait_s=0.001, then="skip"),
        "restarts": _MANY_RESTARTS,
        "device": None if plain else kind.device,
    }
    return feedline.DataLoader(dataset, settings.batch_size, **options)


def build_evaluation(kind: Configuration, settings: Settings) -> Any:
    """Create a small loader that runs beside the one for training."""
    items = Items("dicts", settings.size // 8, Troubles())
    options: dict[str, Any] = {"num_workers": 1, "engine": kind.engine}
    return feedline.DataLoader(items, settings.batch_size, **options)


@dataclass(frozen=True)
class Record:
    """What identifies a batch: its samples in order, and a checksum of all bytes, random ones included."""

    indices: tuple[int, ...]
    checksum: str


def record_of(batch: Any) -> Record:
    """Return the record of a batch."""
    return Record(tuple(batch["index"].tolist()), digest_of(batch, noise=True).hex())
