"""Workers that are killed, crash or exit with restarts=0 raise an error, and none is left behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from feedline import Loader
from feedline.errors import WorkerDied
from tests.contracts.gate import Gate
from tests.faults.deaths import WAYS
from tests.faults.loaders import (
    Deadly,
    Numbers,
    Stream,
    are_gone,
    make,
    mostly_dataloader,
    pids_of,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(7)]


@pytest.mark.parametrize(
    ("way", "kind", "in_order"),
    [
        *((way, "map", True) for way in WAYS),
        ("killed", "map", False),
        ("crashed", "stream", True),
        ("left", "stream", False),
        ("killed", "shared stream", True),
        ("exited", "shared stream", False),
    ],
)
def test_the_error_names_the_process_and_the_cause(way: str, kind: str, in_order: bool) -> None:
    dataset: Any = Deadly(64, {20}, way=way)
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    loader = Loader(dataset, 4, workers=2, in_order=in_order, restarts=0, shard=kind != "stream")
    batches = iter(loader)
    pids = pids_of(batches)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(batches)
    assert type(caught.value) is WorkerDied
    named = re.search(r"pid\(s\) (\d+)", str(caught.value))
    assert named is not None
    assert int(named[1]) in pids
    assert WAYS[way][1] in str(caught.value)
    assert are_gone(pids)
    with pytest.raises(WorkerDied):
        next(batches)


class Held(Numbers):
    """Waits at a gate before every sample."""

    def __init__(self, gate: Gate, count: int = 8) -> None:
        super().__init__(count)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        self.gate.pass_through()
        return index


@pytest.mark.parametrize("in_order", [True, False])
def test_a_busy_worker_killed_from_outside_raises(tmp_path: Path, in_order: bool) -> None:
    with Gate(tmp_path / "gate") as gate:
        batches = iter(Loader(Held(gate), 1, workers=2, in_order=in_order, restarts=0))
        gate.wait_until_reached(2)
        pids = pids_of(batches)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"{pids[0]}.*worker 0 was killed by signal 9"):
            next(batches)
        assert are_gone(pids)


@mostly_dataloader
@pytest.mark.parametrize("restarts", [0, 32])
def test_a_worker_that_dies_while_starting_is_started_only_a_few_times(loader_kind: str, restarts: int) -> None:
    loader = make(loader_kind, Numbers(10), 2, workers=2, worker_init=lambda _: os._exit(5), restarts=restarts)
    with pytest.raises(WorkerDied, match="exit code 5"):
        list(loader)
    assert loader.stats()["restarted_workers"] <= 4, "two more starts each, not the whole budget"
