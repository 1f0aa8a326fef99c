"""Workers that are killed, crash or exit are replaced, and nothing is lost.

Batches are compared, to the bit, with those of a loader without workers and the same seed.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from feedline import Loader
from feedline.delivery.machine import machine
from feedline.errors import WorkerWarning
from feedline.types import Task
from feedline.workers.processes.engine import ProcessEngine
from tests.contracts.gate import Gate
from tests.faults.deaths import COUNT, WAYS, Mortal, Once, die
from tests.faults.loaders import (
    Augmented,
    Deadly,
    Numbers,
    Stream,
    batches_of,
    kill_worker,
    make,
    mostly_dataloader,
    mostly_loader,
    outcomes_of,
    pids_of,
    plain,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(5)]


@functools.cache
def clean(kind: str, batch_size: int | None = 4, count: int = COUNT, epochs: int = 1) -> Any:
    """Return what a loader without workers delivers if all samples work."""
    loader = make(kind, Augmented(count), batch_size, seed=7, shuffle=True)
    return [batches_of(loader) for _ in range(epochs)]


@mostly_loader
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost_however_a_worker_dies(loader_kind: str, way: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11, 30}, way=way, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, seed=7, shuffle=True)
    with pytest.warns(WorkerWarning, match=re.escape(WAYS[way][1])):
        batches = batches_of(loader)
    assert [batches] == clean(loader_kind)
    assert loader.stats()["restarted_workers"] == 2
    assert len(loader.faults) == 0, "no sample is blamed"


@pytest.mark.slow
@pytest.mark.parametrize("fatal", [(801,), (1000, 1200, 1201)])
def test_nothing_is_lost_or_repeated_if_tasks_are_sent_together(
    fatal: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SHORT_S", 10.0)  # however busy this machine is
    together: list[int] = []
    submit = ProcessEngine.submit_together

    def submit_together(engine: ProcessEngine, worker: int, tasks: list[Task]) -> None:
        together.append(len(tasks))
        submit(engine, worker, tasks)

    monkeypatch.setattr(ProcessEngine, "submit_together", submit_together)
    loader = make("Loader", Deadly(1600, fatal, once=Once(tmp_path)), workers=2, seed=7, shuffle=False)
    assert batches_of(loader) == batches_of(make("Loader", Augmented(1600), seed=7, shuffle=False))
    assert loader.stats()["restarted_workers"] == len(fatal)
    assert len(loader.faults) == 0, "no sample is blamed"
    assert max(together) == 8, "half a window for two workers"


@mostly_dataloader
def test_the_warning_says_what_happened(loader_kind: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Deadly(12, {6}, once=Once(tmp_path)), workers=1)
    batches = iter(loader)
    [pid] = pids_of(batches)
    with pytest.warns(WorkerWarning) as caught:
        list(batches)
    [warning] = [one for one in caught if one.category is WorkerWarning]
    text = str(warning.message)
    for part in (f"pid(s) {pid}", "worker 0", "SIGKILL", "batch 1", "4, 5, 6, 7", "restart 1 of 32"):
        assert part in text
    assert warning.filename == __file__, "it points to the training loop"


@pytest.mark.slow
@mostly_loader
def test_warnings_turned_into_errors_lose_no_batch(loader_kind: str, tmp_path: Path) -> None:
    fatal = {0, 6, 17, 44}
    for kind in ("map", "stream", "shared stream", "persistent"):
        folder = tmp_path / kind
        folder.mkdir()
        dataset: Any = Deadly(COUNT, fatal, once=Once(folder))
        options: dict[str, Any] = {}
        if "stream" in kind:
            dataset = Stream(dataset, splits=False)
            options = {"shard": kind == "shared stream"}
        loader = make(loader_kind, dataset, workers=1, persistent=kind == "persistent", seed=7, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outcomes = outcomes_of(loader)
        raised = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        batches = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
        assert [type(exc) for exc in raised] == [WorkerWarning] * 4
        assert [int(sample[0]) for batch in batches for sample in batch] == list(range(COUNT))
        loader.close()


@mostly_dataloader
def test_killing_persistent_workers_in_and_between_epochs_loses_nothing(loader_kind: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11}, once=Once(tmp_path))
    loader = make(loader_kind, dataset, workers=2, persistent=True, seed=7, shuffle=True)
    expected = clean(loader_kind, epochs=4)
    for epoch in range(4):
        iterator = iter(loader)
        if epoch == 2:
            batches = [plain(next(iterator))]
            for pid in pids_of(iterator):
                os.kill(pid, signal.SIGKILL)
            batches += batches_of(iterator)
        else:
            batches = batches_of(iterator)
        assert batches == expected[epoch]
        kill_worker(iterator, epoch % 2)
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_are_replaced(start_method: str, tmp_path: Path) -> None:
    expected = batches_of(Loader(Mortal(COUNT), 4, seed=7, shuffle=True))
    dataset = Mortal(COUNT, frozenset({11}), Once(tmp_path))
    loader = Loader(dataset, 4, workers=1, start_method=start_method, seed=7, shuffle=True)
    assert batches_of(loader) == expected
    assert loader.stats()["restarted_workers"] == 1


class Adding(Numbers):
    """Adds the numbers of all calls to `add`; dies over sample 20 once."""

    def __init__(self, once: Once, count: int = 40) -> None:
        super().__init__(count)
        self.once = once
        self.epoch = 0
        self.extra = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def add(self, extra: int) -> None:
        self.extra += extra

    def __getitem__(self, index: int) -> int:
        if index == 20 and self.epoch == 3 and self.once("killed"):
            die()
        return index + 1000 * self.epoch + self.extra


@mostly_dataloader
@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_new_worker_has_the_calls_of_the_others(
    loader_kind: str, persistent: bool, start_method: str, tmp_path: Path
) -> None:
    loader = make(loader_kind, Adding(Once(tmp_path)), workers=2, persistent=persistent, start_method=start_method)
    assert batches_of(loader)[0] == [0, 1, 2, 3]
    loader.broadcast("add", 500)
    loader.set_epoch(3)
    assert list(itertools.chain(*batches_of(loader))) == [3500 + index for index in range(40)]
    assert loader.stats()["restarted_workers"] == 1
    loader.set_epoch(4)
    assert list(itertools.chain(*batches_of(loader))) == [4500 + index for index in range(40)]
    loader.close()


@mostly_loader
def test_a_call_that_dies_with_its_worker_is_not_lost(loader_kind: str, tmp_path: Path) -> None:
    """The new worker's dataset already has the call, and must not get it twice."""
    with Gate(tmp_path / "gate") as gate:

        class HeldAdding(Adding):
            def __getitem__(self, index: int) -> int:
                if index == 4 and self.once("held"):
                    gate.pass_through()
                return super().__getitem__(index)

        loader = make(loader_kind, HeldAdding(Once(tmp_path)), 1, workers=1, prefetch=2, persistent=True)
        iterator = iter(loader)
        first = [plain(next(iterator))[0] for _ in range(4)]
        gate.wait_until_reached()
        loader.broadcast("add", 500)
        kill_worker(iterator, 0)
        rest = [batch[0] for batch in batches_of(iterator)]
        numbers = first + rest
        assert [number % 500 for number in numbers] == list(range(40))
        assert {number // 500 for number in numbers} == {0, 1}
        assert numbers[-1] == 539
        loader.close()
