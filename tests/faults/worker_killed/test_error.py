"""Workers that are killed, crash or exit with restarts=0 raise an error, and none is left behind."""

from __future__ import annotations

import re
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
