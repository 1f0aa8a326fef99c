"""Workers whose memory grows are reported, and those over the limit are replaced between two batches."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import BadOption, FeedlineWarning, WorkerWarning
from tests.faults.loaders import (
    Augmented,
    Numbers,
    StatefulStream,
    batches_of,
    make,
    mostly_dataloader,
    mostly_loader,
    on,
    pids_of,
    plain,
)

pytestmark = pytest.mark.sample(5)

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


def limit_for(kind: str, **options: Any) -> int:
    """Return the memory of a worker after its first batch, without leaks, plus `ROOM`."""
    batches = iter(make(kind, Augmented(COUNT), workers=1, **options))
    next(batches)
    [pid] = pids_of(batches)
    used = private_bytes(pid)
    batches.close()
    return used + ROOM


def dataset_for(kind: str, samples: Any) -> tuple[Any, dict[str, Any]]:
    return (samples, {}) if kind == "map" else (StatefulStream(samples, splits=False), {"shard": False})


@mostly_loader
@pytest.mark.parametrize(("kind", "persistent"), [("map", False), ("map", True), ("stream", True)])
def test_workers_over_the_limit_are_replaced(loader_kind: str, kind: str, persistent: bool) -> None:
    plain_dataset, options = dataset_for(kind, Augmented(COUNT))
    same = make(loader_kind, plain_dataset, seed=3, **options)
    dataset, options = dataset_for(kind, Leaking())
    options = {"workers": 1, "persistent": persistent, "seed": 3, **options}
    loader = make(loader_kind, dataset, max_memory_per_worker=limit_for(loader_kind), restarts=0, **options)
    for _ in range(2):
        assert batches_of(loader) == batches_of(same)
    stats = loader.stats()
    assert stats["recycled_workers"] >= 4, "96 MiB per epoch, of which 24 may be kept"
    assert stats["restarted_workers"] == 0
    loader.close()


@mostly_loader
def test_inherited_memory_does_not_count(loader_kind: str) -> None:
    """A forked worker shares the memory of the training process."""
    most = limit_for(loader_kind)
    ballast = np.ones(100 * MIB, np.uint8)
    loader = make(loader_kind, Numbers(40), workers=1, max_memory_per_worker=most)
    assert list(itertools.chain(*batches_of(loader))) == list(range(40))
    assert loader.stats()["recycled_workers"] == 0
    assert ballast[0] == 1


@mostly_loader
def test_workers_over_the_limit_from_the_start_are_kept_after_a_warning(loader_kind: str) -> None:
    """Replacing them would not help."""
    loader = make(loader_kind, Numbers(40), workers=2, max_memory_per_worker=1)
    with pytest.warns(WorkerWarning, match="Raise max_memory_per_worker") as caught:
        assert list(itertools.chain(*batches_of(loader))) == list(range(40))
    assert len([one for one in caught if issubclass(one.category, FeedlineWarning)]) <= 2
    assert loader.stats()["recycled_workers"] == 0


@pytest.mark.slow
@mostly_dataloader
def test_a_growing_worker_is_reported_once_per_doubling(loader_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.delivery.driver.memory_watch._NOTABLE_BYTES", 30 * MIB)
    monkeypatch.setattr("feedline.delivery.driver.memory_watch._BASE_AFTER", 2)
    loader = make(loader_kind, Leaking(64, 4 * MIB), 2, workers=1)
    batches = iter(loader)
    [pid] = pids_of(batches)
    with pytest.warns(WorkerWarning) as caught:
        delivered = [plain(batch) for batch in batches]
    assert len(delivered) == 32
    assert 2 <= len(caught) <= 4, "at about 32, 64 and 128 MiB"
    text = str(caught[0].message)
    for part in ("Worker 0", f"pid {pid}", "MiB", "max_memory_per_worker"):
        assert part in text
    assert caught[0].filename == __file__


@mostly_dataloader
@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_the_limit_is_rejected_without_worker_processes(loader_kind: str, engine: str) -> None:
    with pytest.raises(BadOption, match="max_memory_per_worker"):
        make(loader_kind, Numbers(), max_memory_per_worker=1 << 30, **on(engine))
