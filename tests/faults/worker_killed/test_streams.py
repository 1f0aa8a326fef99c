"""Each sample comes once if workers are killed while they read a stream."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import WorkerDied
from tests.faults.deaths import COUNT, Once, die
from tests.faults.loaders import (
    Augmented,
    Deadly,
    Numbers,
    OneReader,
    StatefulStream,
    Stream,
    batches_of,
    make,
    mostly_dataloader,
    mostly_loader,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(12)]


STREAMS: dict[str, type[Stream]] = {"stateless": Stream, "stateful iterator": StatefulStream, "own iterator": OneReader}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "batch_size"),
    [*((kind, 2, 4) for kind in STREAMS), ("stateless", 1, None)],
)
def test_each_sample_of_a_stream_comes_once(kind: str, workers: int, batch_size: int | None, tmp_path: Path) -> None:
    fatal = {0, 13, 14, 40, 44}
    expected = batches_of(make("DataLoader", STREAMS[kind](Augmented(COUNT)), batch_size, workers=workers, seed=7))
    stream = STREAMS[kind](Deadly(COUNT, fatal, once=Once(tmp_path)))
    loader = make("DataLoader", stream, batch_size, workers=workers, seed=7)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 5


@mostly_loader
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_each_sample_of_a_shared_stream_comes_once(loader_kind: str, kind: str, workers: int, tmp_path: Path) -> None:
    stream = STREAMS[kind](Augmented(COUNT), splits=False)
    expected = batches_of(make(loader_kind, stream, shard=True, seed=7))
    # Every worker reads all samples, so the first one to reach a fatal sample dies.
    stream = STREAMS[kind](Deadly(COUNT, {0, 13, 40, 44}, once=Once(tmp_path)), splits=False)
    loader = make(loader_kind, stream, shard=True, workers=workers, seed=7)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 4


class Restarting(Stream):
    """Starts again once it has ended. Its worker dies at the end, after it has sent its last, short batch."""

    at = times_at_end = 0

    def __init__(self, once: Once) -> None:
        super().__init__(Numbers(10))
        self.once = once

    def __iter__(self) -> Iterator[Any]:
        while self.at < 10:
            self.at += 1
            yield self.at - 1
        self.at, self.times_at_end = 0, 0

    def state_dict(self) -> dict[str, int]:
        if self.at == 0:  # called with the short batch, and after it
            self.times_at_end += 1
            if self.times_at_end == 2 and self.once("end"):
                die()
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@mostly_dataloader
@pytest.mark.parametrize("shard", [False, True])
def test_a_worker_that_dies_at_the_end_of_its_stream_does_not_begin_again(
    loader_kind: str, shard: bool, tmp_path: Path
) -> None:
    loader = make(loader_kind, Restarting(Once(tmp_path)), shard=shard, workers=1)
    assert list(itertools.chain(*batches_of(loader))) == list(range(10))
    assert loader.stats()["restarted_workers"] == 1


@mostly_loader
@pytest.mark.parametrize("shard", [False, True])
def test_a_stream_that_always_kills_its_worker_raises(loader_kind: str, shard: bool) -> None:
    stream = Stream(Deadly(COUNT, {20}), splits=False)
    loader = make(loader_kind, stream, shard=shard, workers=1, on_error="skip")
    batches = iter(loader)
    delivered: list[Any] = []
    with pytest.raises(WorkerDied, match="SIGKILL"):
        delivered.extend(batches)
    assert len(delivered) == 5
    with pytest.raises(WorkerDied):
        next(batches)
    assert loader.stats()["restarted_workers"] < 32, "not the whole budget is used"


class Counting(Numbers):
    """A map-style dataset with a state: how many samples it has made."""

    def __init__(self, count: int, once: Once | None = None) -> None:
        super().__init__(count)
        self.made = 0
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in (9, 30) and self.once is not None and self.once(index):
            die()
        self.made += 1
        return np.array([index, self.made])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


@pytest.mark.parametrize("workers", [1, 2])
@mostly_dataloader
def test_a_stateful_dataset_continues_after_deaths(loader_kind: str, workers: int, tmp_path: Path) -> None:
    loader = make(loader_kind, Counting(COUNT, Once(tmp_path)), workers=workers)
    samples = list(itertools.chain(*batches_of(loader)))
    assert [index for index, _ in samples] == list(range(COUNT))
    counts = Counter(made for _, made in samples)  # each worker counts its own samples, without gaps or repetitions
    assert [counts[made] for made in range(1, max(counts) + 1)] == sorted(counts.values(), reverse=True)
    assert max(counts.values()) == workers
    assert loader.stats()["restarted_workers"] == 2
