"""How many workers may be replaced."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import WorkerDied
from tests.faults.deaths import COUNT, Once
from tests.faults.loaders import (
    Augmented,
    Deadly,
    Numbers,
    Stream,
    are_gone,
    batches_of,
    indices_of,
    kill_worker,
    make,
    one_of_both,
    pids_of,
    plain,
    the_other_of_both,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(5)]


@one_of_both
@pytest.mark.parametrize("kind", ["map", "stream", "shared stream"])
def test_the_budget_is_exceeded(loader_kind: str, kind: str, tmp_path: Path) -> None:
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
    # What had arrived together with the last death is not delivered any more.
    assert [int(sample[0]) for sample in delivered] == list(range(len(delivered)))
    assert len(delivered) in (12, 16, 20)
    assert loader.stats()["restarted_workers"] == 2
    with pytest.raises(WorkerDied):
        next(batches)
    assert sum(map(len, batches_of(loader))) == COUNT, "and the next epoch has a budget of its own"


@the_other_of_both
def test_every_epoch_has_the_whole_budget(loader_kind: str, tmp_path: Path) -> None:
    # One batch at a time: a worker that had answered for the whole epoch already would be missed in the next one only.
    loader = make(loader_kind, Numbers(COUNT), workers=2, persistent=True, restarts=1, prefetch=1)
    for _ in range(4):
        iterator = iter(loader)
        batches = [plain(next(iterator))]
        kill_worker(iterator, 0)
        batches += batches_of(iterator)
        assert list(itertools.chain(*batches)) == list(range(COUNT))
    loader.close()


@one_of_both
def test_every_worker_dies_at_once_again_and_again(loader_kind: str) -> None:
    """A machine without memory: it ends, with an error and without anybody left."""
    loader = make(loader_kind, Deadly(COUNT, range(COUNT)), workers=2, restarts=5)
    with pytest.raises(WorkerDied):
        list(loader)
    assert loader.stats()["restarted_workers"] == 5


@the_other_of_both
@pytest.mark.slow
def test_a_long_night(loader_kind: str) -> None:
    """Workers killed at any moment, for many epochs, with samples that fail and samples that kill among them."""
    bad, fatal = {3, 50, 51, 120}, {7, 90}
    expected = make(loader_kind, Augmented(160, bad | fatal), on_error="skip", seed=7, shuffle=True)
    dataset = Deadly(160, fatal, bad=bad)
    loader = make(
        loader_kind, dataset, workers=3, on_error="skip", seed=7, shuffle=True, restarts=10_000, persistent=True
    )
    random = np.random.default_rng(int(os.environ.get("SEED", "1")))
    for _ in range(25):
        iterator = iter(loader)
        batches = []
        for batch in iterator:
            batches.append(plain(batch))
            if random.random() < 0.2:
                kill_worker(iterator, int(random.integers(3)))
        assert batches == batches_of(expected)
    assert sorted(indices_of(loader.faults)) == sorted(bad | fatal)
    loader.close()
