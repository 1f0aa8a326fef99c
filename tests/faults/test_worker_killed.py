"""Workers that are killed, crash or exit are replaced, and nothing is lost; or they raise an error.

Batches are compared, to the bit, with those of a loader without workers and the same seed.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.delivery.machine import machine
from feedline.errors import WorkerDied, WorkerWarning
from feedline.types import Task
from feedline.workers.processes.engine import ProcessEngine
from tests.faults.deaths import COUNT, WAYS, Mortal, Once, die
from tests.faults.loaders import (
    Augmented,
    Bad,
    Deadly,
    Numbers,
    StatefulStream,
    Stream,
    are_gone,
    batches_of,
    indices_of,
    kill_worker,
    make,
    outcomes_of,
    pids_of,
    plain,
)

pytestmark = pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
slow = pytest.mark.slow


def without_workers(kind: str, count: int = COUNT, batch_size: int = 4, epochs: int = 1) -> list[Any]:
    """Return the epochs that a loader without workers delivers if all samples work."""
    loader = make(kind, Augmented(count), batch_size, seed=7, shuffle=True)
    return [batches_of(loader) for _ in range(epochs)]


# -- nothing is lost ---


@pytest.mark.parametrize("way", ["killed", "exited", *(pytest.param(way, marks=slow) for way in list(WAYS)[1:5])])
def test_nothing_is_lost_however_a_worker_dies(way: str, tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11, 30}, way=way, once=Once(tmp_path))
    loader = make("Loader", dataset, workers=2, seed=7, shuffle=True)
    with pytest.warns(WorkerWarning, match=re.escape(WAYS[way][1])):
        batches = batches_of(loader)
    assert [batches] == without_workers("Loader")
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
    loader = make("Loader", Deadly(1600, fatal, once=Once(tmp_path)), workers=2, seed=7)
    assert batches_of(loader) == batches_of(make("Loader", Augmented(1600), seed=7))
    assert loader.stats()["restarted_workers"] == len(fatal)
    assert len(loader.faults) == 0, "no sample is blamed"
    assert max(together) == 8, "half a window for two workers"


@pytest.mark.parametrize("kind", ["map", pytest.param("shared stream", marks=slow)])
def test_warnings_turned_into_errors_lose_no_batch(kind: str, tmp_path: Path) -> None:
    dataset: Any = Deadly(COUNT, {0, 6, 17, 44}, once=Once(tmp_path))
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    loader = make("Loader", dataset, workers=1, persistent=kind == "map", seed=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes = outcomes_of(loader)
    raised = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    batches = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    assert [type(exc) for exc in raised] == [WorkerWarning] * 4
    assert [int(sample[0]) for batch in batches for sample in batch] == list(range(COUNT))
    loader.close()


def test_killing_persistent_workers_in_and_between_epochs_loses_nothing(tmp_path: Path) -> None:
    dataset = Deadly(COUNT, {11}, once=Once(tmp_path))
    loader = make("DataLoader", dataset, workers=2, persistent=True, seed=7, shuffle=True)
    for epoch, expected in enumerate(without_workers("DataLoader", epochs=4)):
        iterator = iter(loader)
        batches = []
        if epoch == 2:
            batches.append(plain(next(iterator)))
            for pid in pids_of(iterator):
                os.kill(pid, signal.SIGKILL)
        batches += batches_of(iterator)
        assert batches == expected
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


# -- errors ---


@pytest.mark.parametrize(
    ("way", "kind", "in_order", "restarts"),
    [
        ("killed", "map", True, 0),
        ("left", "stream", False, 0),
        ("exited", "shared stream", True, 2),
        pytest.param("crashed", "map", False, 0, marks=slow),
        pytest.param("aborted", "shared stream", False, 0, marks=slow),
        pytest.param("killed", "map", True, 2, marks=slow),
    ],
)
def test_the_error_names_the_process_and_the_cause(
    way: str, kind: str, in_order: bool, restarts: int, tmp_path: Path
) -> None:
    """The first death that `restarts` does not cover is raised, and none of the workers is left."""
    dataset: Any = Deadly(COUNT, {5, 13, 21, 29}, way=way, once=Once(tmp_path))
    if kind != "map":
        dataset = Stream(dataset, splits=False)
    loader = make("Loader", dataset, workers=1, in_order=in_order, restarts=restarts, shard=kind != "stream")
    batches = iter(loader)
    pids = set(pids_of(batches))
    delivered: list[Any] = []

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
    assert WAYS[way][1] in str(caught.value)
    assert are_gone(pids)
    # Batches that arrived together with the last death are not delivered.
    assert [int(sample[0]) for sample in delivered] == list(range(len(delivered)))
    assert loader.stats()["restarted_workers"] == restarts
    with pytest.raises(WorkerDied):
        next(batches)
    if restarts:
        assert sum(map(len, batches_of(loader))) == COUNT, "the next epoch has its own budget"


@pytest.mark.parametrize("batch_size", [8, pytest.param(1, marks=slow)])
def test_the_error_names_a_sample_that_kills(batch_size: int) -> None:
    loader = make("Loader", Deadly(COUNT, {20, 44}), batch_size, workers=2, seed=7, shuffle=True, restarts=64)
    outcomes = outcomes_of(loader)
    [expected] = without_workers("Loader", batch_size=batch_size)
    for outcome, batch in zip(outcomes, expected, strict=True):
        fatal = {20, 44} & {int(sample[0]) for sample in batch}
        if not fatal:
            assert outcome == batch
            continue
        assert type(outcome) is WorkerDied
        assert re.search(rf"Sample ({'|'.join(map(str, fatal))}) kills", str(outcome))
        assert "SIGKILL" in str(outcome)
    assert {(fault.action, fault.stage) for fault in loader.faults} == {("raise", "worker")}


def test_no_sample_is_blamed_if_only_the_whole_batch_kills(tmp_path: Path) -> None:
    """A batch that kills twice although each of its samples works is made again as a whole."""

    class Together(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            if 5 in indices and len(indices) > 1 and once.times("killed") <= 2:
                die()
            return [self[index] for index in indices]

    once = Once(tmp_path)
    loader = make("Loader", Together(16), workers=2)
    assert list(itertools.chain(*batches_of(loader))) == list(range(16))
    assert len(loader.faults) == 0


# -- streams, and datasets with a state ---


@pytest.mark.parametrize(
    ("kind", "shared"),
    [(Stream, True), (StatefulStream, False), pytest.param(Stream, False, marks=slow)],
)
def test_each_sample_of_a_stream_comes_once(kind: type[Stream], shared: bool, tmp_path: Path) -> None:
    stream = kind(Augmented(COUNT), splits=not shared)
    expected = batches_of(make("DataLoader", stream, shard=shared, workers=2, seed=7))
    # Every worker of a shared stream reads all samples, so the first one to reach a fatal sample dies.
    stream = kind(Deadly(COUNT, {0, 13, 40, 44}, once=Once(tmp_path)), splits=not shared)
    loader = make("DataLoader", stream, shard=shared, workers=2, seed=7)
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


@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=slow)])
def test_a_worker_that_dies_at_the_end_of_its_stream_does_not_begin_again(shard: bool, tmp_path: Path) -> None:
    loader = make("DataLoader", Restarting(Once(tmp_path)), shard=shard, workers=1)
    assert list(itertools.chain(*batches_of(loader))) == list(range(10))
    assert loader.stats()["restarted_workers"] == 1


@pytest.mark.parametrize("shard", [True, pytest.param(False, marks=slow)])
def test_a_stream_that_always_kills_its_worker_raises(shard: bool) -> None:
    loader = make("Loader", Stream(Deadly(COUNT, {20}), splits=False), shard=shard, workers=1, on_error="skip")
    delivered: list[Any] = []
    with pytest.raises(WorkerDied, match="SIGKILL"):
        delivered.extend(loader)
    assert len(delivered) == 5
    assert loader.stats()["restarted_workers"] < 32, "not the whole budget is used"


class Counting(Numbers):
    """A map-style dataset with a state: how many samples it has made."""

    def __init__(self, count: int, once: Once) -> None:
        super().__init__(count)
        self.made = 0
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in (9, 30) and self.once(index):
            die()
        self.made += 1
        return np.array([index, self.made])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=slow)])
def test_a_stateful_dataset_continues_after_deaths(workers: int, tmp_path: Path) -> None:
    loader = make("DataLoader", Counting(COUNT, Once(tmp_path)), workers=workers)
    samples = list(itertools.chain(*batches_of(loader)))
    assert [index for index, _ in samples] == list(range(COUNT))
    counts = Counter(made for _, made in samples)  # each worker counts its own samples, without gaps or repetitions
    assert [counts[made] for made in range(1, max(counts) + 1)] == sorted(counts.values(), reverse=True)
    assert max(counts.values()) == workers
    assert loader.stats()["restarted_workers"] == 2


# -- workers that fail to start ---


def fail(worker: int) -> None:
    raise Bad(f"worker {worker} finds no disk")


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_function_that_raises_ends_the_iteration_with_its_error(engine: str) -> None:
    loader = make("Loader", Numbers(20), workers=2, engine=engine, worker_init=fail)
    batches = iter(loader)
    with pytest.raises(Bad, match="finds no disk") as caught:
        list(batches)
    assert "worker" in "\n".join(caught.value.__notes__)
    with pytest.raises(Bad):
        next(batches)
    assert loader.stats()["restarted_workers"] == 0
    assert indices_of(loader.faults) == []
    with pytest.raises(Bad):
        list(loader)


def leave(worker: int) -> None:
    os._exit(3)


def be_killed(worker: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("init", "restarts", "times", "how"),
    [(leave, 10**6, 1, "exit code 3"), (be_killed, 3, 4, "SIGKILL")],
)
def test_a_worker_that_never_starts_is_given_up_and_the_error_says_why(
    init: Any, restarts: int | None, times: int, how: str
) -> None:
    """A worker that is killed is replaced as often as the user's `restarts` allows, since the cause may be external."""
    loader = make("Loader", Numbers(20), workers=1, worker_init=init, restarts=restarts)
    with pytest.raises(WorkerDied, match=how) as caught:
        list(loader)
    assert "worker_init_fn" in str(caught.value)
    assert loader.stats()["restarted_workers"] == times - 1
