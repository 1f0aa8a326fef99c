"""Workers whose memory grows are reported, and those over the limit are replaced between two batches."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import FeedlineWarning, WorkerWarning
from tests.faults.loaders import (
    Augmented,
    Numbers,
    StatefulStream,
    batches_of,
    make,
    pids_of,
)

MIB = 1 << 20
COUNT = 96
ROOM = 24 * MIB
"""What a worker may keep: far more than after its first batch, far less than for all samples."""


@pytest.fixture(autouse=True)
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check after every answer, not once a second."""
    monkeypatch.setattr("feedline.delivery.driver.memory_watch._EVERY_S", 0.0)
    monkeypatch.setattr("feedline.delivery.driver.memory_watch._MOST_SHARE", float("inf"))


class Leaking(Augmented):
    """Keeps some megabytes for every sample, in new pages rather than in the existing heap."""

    def __init__(self, count: int = COUNT, leak_bytes: int = MIB) -> None:
        super().__init__(count)
        self.leak_bytes = leak_bytes
        self.kept: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.kept.append(mmap.mmap(-1, self.leak_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.kept[-1].write(bytes(self.leak_bytes))
        return super().__getitem__(index)


def private_bytes(pid: int) -> int:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def limit() -> int:
    """Return the memory of a worker after its first batch, without leaks, plus `ROOM`."""
    batches = iter(make("Loader", Augmented(COUNT), workers=1))
    next(batches)
    [pid] = pids_of(batches)
    used = private_bytes(pid)
    batches.close()
    return used + ROOM


def dataset_for(kind: str, samples: Any) -> tuple[Any, dict[str, Any]]:
    return (samples, {}) if kind == "map" else (StatefulStream(samples, splits=False), {"shard": False})


@pytest.mark.parametrize(("kind", "persistent"), [("map", False), pytest.param("stream", True, marks=pytest.mark.slow)])
def test_workers_over_the_limit_are_replaced(kind: str, persistent: bool) -> None:
    plain_dataset, options = dataset_for(kind, Augmented(COUNT))
    same = make("Loader", plain_dataset, seed=3, **options)
    dataset, options = dataset_for(kind, Leaking())
    options = {"workers": 1, "persistent": persistent, "seed": 3, **options}
    loader = make("Loader", dataset, max_memory_per_worker=limit(), restarts=0, **options)
    for _ in range(2):
        assert batches_of(loader) == batches_of(same)
    stats = loader.stats()
    assert stats["recycled_workers"] >= 4, "96 MiB per epoch, of which 24 may be kept"
    assert stats["restarted_workers"] == 0
    loader.close()


def test_inherited_memory_does_not_count() -> None:
    """A forked worker shares the memory of the training process."""
    most = limit()
    ballast = np.ones(100 * MIB, np.uint8)
    loader = make("Loader", Numbers(40), workers=1, max_memory_per_worker=most)
    assert list(itertools.chain(*batches_of(loader))) == list(range(40))
    assert loader.stats()["recycled_workers"] == 0
    assert ballast[0] == 1


def test_workers_over_the_limit_from_the_start_are_kept_after_a_warning() -> None:
    """Replacing them would not help."""
    loader = make("Loader", Numbers(40), workers=2, max_memory_per_worker=1)
    with pytest.warns(WorkerWarning, match="Raise max_memory_per_worker") as caught:
        assert list(itertools.chain(*batches_of(loader))) == list(range(40))
    assert len([one for one in caught if issubclass(one.category, FeedlineWarning)]) <= 2
    assert loader.stats()["recycled_workers"] == 0
