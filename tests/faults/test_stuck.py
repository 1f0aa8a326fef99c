"""Workers that do not answer: an error says what they are doing, or they are replaced."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import WorkerTimeout, WorkerWarning
from tests.contracts.gate import Gate
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Augmented,
    Numbers,
    Stream,
    batches_of,
    make,
    pids_of,
    plain,
)

# Timeouts of 0.3 s, which a busy machine exceeds. tests/delivery/machine has the same tests in virtual time.
pytestmark = pytest.mark.real_time

TIMEOUT_S = 0.3


class Held(Numbers):
    """Waits at a gate before sample 5."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(20)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.wait_for_the_moon()
        return index

    def wait_for_the_moon(self) -> None:
        self.gate.pass_through()


def options_for(kind: str) -> dict[str, Any]:
    return {} if kind == "map" else {"shard": kind == "shared stream"}


@pytest.mark.parametrize(("engine", "kind"), [("process", "map"), ("thread", "stream"), ("process", "shared stream")])
def test_the_error_says_what_the_worker_is_doing(engine: str, kind: str, tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        dataset: Any = Held(gate)
        if kind != "map":
            dataset = Stream(dataset, splits=False)
        loader = make("Loader", dataset, workers=1, engine=engine, timeout_s=TIMEOUT_S, **options_for(kind))
        batches = iter(loader)
        assert plain(next(batches)) == [0, 1, 2, 3]
        with pytest.raises(WorkerTimeout, match=r"timed out after 0\.3 seconds") as caught:
            next(batches)
        text = str(caught.value)
        assert "wait_for_the_moon" in text, "the Python stack"
        assert "worker 0" in text
        if engine == "process":
            assert f"pid {pids_of(batches)[0]}" in text
        if kind == "map":
            assert "samples 4, 5, 6, 7" in text
        elapsed = re.search(r"after ([\d.]+) seconds\. Raise", text)
        assert elapsed is not None
        assert float(elapsed[1]) >= TIMEOUT_S
        gate.open()
        rest = batches_of(batches)
        assert list(itertools.chain(*rest)) == list(range(4, 20)), "late, but not lost"


class StopsItself(Augmented):
    """Stops its worker at sample 14, once."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index == 14 and Once(self.folder)("stopped"):
            (self.folder / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)


def test_a_stopped_worker_is_replaced_if_restarts_are_given(tmp_path: Path) -> None:
    dataset = StopsItself(40, tmp_path)
    loader = make("Loader", dataset, workers=2, timeout_s=TIMEOUT_S, seed=3, restarts=4)
    with pytest.warns(WorkerWarning, match="timed out") as warned:
        batches = batches_of(loader)
    pid = int((tmp_path / "pid").read_text())
    assert any(f"pid {pid}" in str(one.message) for one in warned)
    assert batches == batches_of(make("Loader", Augmented(40), seed=3))
    assert loader.stats()["restarted_workers"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
