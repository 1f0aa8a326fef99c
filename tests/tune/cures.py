"""The datasets and loaders of `sick` whose fix is mechanical, with it applied; and what that gains."""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data

import feedline
from feedline.system.process import scheduled_s
from feedline.system.timing import Clock
from tests.tune import sick

_ROUND_S = 0.3
_ROUNDS = 5


class Arrays(sick.Objects):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = [np.array(words, "S13").view(np.uint8) for words in self.words]

    def __getitem__(self, index: int) -> Any:
        return {"words": self.bytes[index % 200]}


class Mapped(sick.Reopening):
    rows: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            self.rows = np.load(self.path, mmap_mode="r")
        return np.array(self.rows[index % 1000])


class KeptHDF5(sick.ReopeningHDF5):
    file: Any = None

    def __getitem__(self, index: int) -> Any:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["rows"][index % 1000]


class KeptSQLite(sick.ReopeningSQLite):
    connection: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        (row,) = self.connection.execute("SELECT value FROM rows WHERE id = 1")
        return np.array(row)


def _stored_small(images: Any) -> Any:
    from PIL import Image

    data = io.BytesIO()
    Image.open(io.BytesIO(images.data)).resize((96, 96)).save(data, "JPEG")
    images.data = data.getvalue()
    return images


class Bytes(sick.Floats):
    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.images[index % 20])


class WholeBytes(sick.WholeFloats):
    def __getitem__(self, index: int) -> Any:
        return self.images[index % 20]


class Prompt(sick.Stragglers):
    def __getitem__(self, index: int) -> Any:
        return sick.Healthy.__getitem__(self, index)


def _stacked(samples: list[Any]) -> Any:
    return np.stack([sample["x"] for sample in samples]).astype(np.float64)


# -- what is measured --------------------------------------------------------------------------------------------------


# Any: loaders of feedline's and torch's.
def _batches_per_s(loader: Any) -> float:
    """Return the rate without workers. What other programs take of the cores is left out."""
    clock, count, batches = Clock(), 0, iter(loader)
    before = clock.now()
    while not count or clock.since(before)[0] < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
    seconds = clock.since(before)[0]
    clock.close()
    return count / seconds


def _batches_per_worker_s(loader: Any) -> float:
    """Return the rate by the time that the only worker computes."""
    batches = iter(loader)
    next(batches)
    count, (pid,) = 0, loader._resources.worker_pids
    before_s, computed_s = scheduled_s(pid)[0], 0.0
    while computed_s < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
        computed_s = scheduled_s(pid)[0] - before_s
    return count / computed_s


def _threads_per_s(loader: Any) -> float:
    """Return the rate on the wall: of samples that sleep, others take little."""
    batches = iter(loader)
    next(batches)
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _ROUND_S:
        if next(batches, None) is None:
            batches = iter(loader)
        count += 1
    return count / (time.perf_counter() - began_s)


def _epochs_per_s(loader: Any) -> float:
    """Return the rate of whole epochs, after the first."""
    list(loader)
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _ROUND_S:
        list(loader)
        count += 1
    return count / (time.perf_counter() - began_s)


@dataclass(frozen=True)
class Cure:
    """A loader with a disease, and one without."""

    disease: str
    sick: Callable[[], Any]
    cured: Callable[[], Any]
    rate: Callable[[Any], float] = _batches_per_s

    def gain(self) -> float:
        """Return how many times as fast it is without: the best of some rounds of each, in turn."""
        rates: tuple[list[float], list[float]] = ([], [])
        loaders = (self.sick(), self.cured())
        for _ in range(_ROUNDS):
            for loader, found in zip(loaders, rates, strict=True):
                found.append(self.rate(loader))
        for loader in loaders:
            getattr(loader, "close", lambda: None)()
        return max(rates[1]) / max(rates[0])


def _loader(dataset: Any, **options: Any) -> Any:
    return feedline.DataLoader(dataset, 32, **options, persistent_workers=bool(options))


def _sent(disease: str, ill: Callable[[], Any], well: Callable[[], Any]) -> Cure:
    return Cure(
        disease,
        lambda: _loader(ill(), num_workers=1),
        lambda: _loader(well(), num_workers=1),
        _batches_per_worker_s,
    )


CURES = {
    "Waiting": Cure(
        "waiting",
        lambda: _loader(sick.Waiting(), num_workers=1, engine="thread"),
        lambda: _loader(sick.Waiting(), num_workers=8, engine="thread"),
        _threads_per_s,
    ),
    "Objects": _sent("serialisation", sick.Objects, Arrays),
    "Reopening": _sent("reopened-file", sick.Reopening, Mapped),
    "ReopeningHDF5": _sent("reopened-file", sick.ReopeningHDF5, KeptHDF5),
    "ReopeningSQLite": _sent("reopened-file", sick.ReopeningSQLite, KeptSQLite),
    "LargeImages": _sent("oversized-images", sick.LargeImages, lambda: _stored_small(sick.LargeImages())),
    "LargeImagesByOpenCV": _sent(
        "oversized-images", sick.LargeImagesByOpenCV, lambda: _stored_small(sick.LargeImagesByOpenCV())
    ),
    "Floats": _sent("floats", sick.Floats, Bytes),
    "WholeFloats": _sent("floats", sick.WholeFloats, WholeBytes),
    "Stragglers": Cure("stragglers", lambda: _loader(sick.Stragglers()), lambda: _loader(Prompt())),
    "slow_collate": Cure(
        "slow-collate", sick.slow_collate, lambda: feedline.DataLoader(sick.Wide(), 128, collate_fn=_stacked)
    ),
    "restarting": Cure(
        "workers-restarted",
        sick.restarting,
        lambda: feedline.DataLoader(sick.Few(), 8, num_workers=2, persistent_workers=True),
        _epochs_per_s,
    ),
    "restarting_torch": Cure(
        "workers-restarted",
        sick.restarting_torch,
        lambda: torch.utils.data.DataLoader(sick.Few(), 8, num_workers=2, persistent_workers=True),  # type: ignore[arg-type]
        _epochs_per_s,
    ),
}
