"""The limit on replaced workers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import WorkerDied
from tests.faults.deaths import COUNT, Once
from tests.faults.loaders import (
    Deadly,
    Numbers,
    Stream,
    are_gone,
    batches_of,
    kill_worker,
    make,
    mostly_dataloader,
    mostly_loader,
    pids_of,
    plain,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(5)]


@mostly_loader
@pytest.mark.parametrize("kind", ["map", "stream", "shared stream"])
def test_exceeding_the_budget_raises(loader_kind: str, kind: str, tmp_path: Path) -> None:
    dataset: Any = Deadly(COUNT, {5, 13, 21, 29}, once=Once(tmp_path))
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    options = {} if kind == "map" else {"shard": kind == "shared stream"}
    loader = make(loader_kind, dataset, workers=1, restarts=2, **options)
    batches = iter(loader)
    delivered: list[Any] = []
    pids = set(pids_of(batches))

    def go_on() -> None:
        for batch in batches:
            delivered.extend(plain(batch))
            pids.update(pids_of(batches))

    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        go_on()
    assert type(caught.value) is WorkerDied
    named = re.search(r"pid\(s\) (\d+)", str(caught.value))
    assert named is not None
    assert int(named[1]) in pids
    assert are_gone(pids)
    # Batches that arrived together with the last death are not delivered.
    assert [int(sample[0]) for sample in delivered] == list(range(len(delivered)))
    assert len(delivered) in (12, 16, 20)
    assert loader.stats()["restarted_workers"] == 2
    with pytest.raises(WorkerDied):
        next(batches)
    assert sum(map(len, batches_of(loader))) == COUNT, "the next epoch has its own budget"


@mostly_dataloader
def test_every_epoch_has_the_whole_budget(loader_kind: str, tmp_path: Path) -> None:
    # One batch at a time, since the death of a worker with no task left would be noticed only in the next epoch.
    loader = make(loader_kind, Numbers(COUNT), workers=2, persistent=True, restarts=1, prefetch=1)
    for _ in range(4):
        iterator = iter(loader)
        batches = [plain(next(iterator))]
        kill_worker(iterator, 0)
        batches += batches_of(iterator)
        assert list(itertools.chain(*batches)) == list(range(COUNT))
    loader.close()
