"""Loaders that find their number of workers: the same batches, the same states, and why."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import feedline
from feedline import DataLoader, Loader
from feedline.driver import tuning as tuning_module
from feedline.driver.driver import Driver
from feedline.errors import BadOption

pytestmark = pytest.mark.sample(2)


class Slow(Dataset[Any]):
    """Samples that take some time, and draw random numbers."""

    def __init__(self, count: int = 400, seconds: float = 0.002) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, float]:
        time.sleep(self.seconds)
        return index, float(feedline.rng().random())


class Stream(IterableDataset[int]):
    """A stream that does not split itself."""

    def __init__(self, count: int = 300, seconds: float = 0.001) -> None:
        self.count, self.seconds = count, seconds

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            time.sleep(self.seconds)
            yield number


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide after a few batches, so that much happens in a short epoch."""
    monkeypatch.setattr(tuning_module, "_LEAST_BATCHES", 4)
    monkeypatch.setattr(tuning_module, "_LEAST_S", 0.02)
    monkeypatch.setattr(tuning_module, "_EVERY", 1)


def batches_of(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


# -- the same batches --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("engine", ["auto", "process", "thread"])
def test_the_batches_are_those_of_any_number(engine: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    fixed = batches_of(DataLoader(Slow(seconds=0), **options))
    assert batches_of(DataLoader(Slow(seconds=0), num_workers=2, **options)) == fixed
    loader = DataLoader(Slow(), num_workers="auto", engine=engine, **options)
    assert batches_of(loader) == fixed
    assert loader.tuning is not None
    assert any(line.startswith("2 -> ") for line in loader.tuning.log), loader.tuning.log  # on a busy machine, and back


@pytest.mark.usefixtures("quick")
def test_the_other_loader_too() -> None:
    fixed = batches_of(Loader(Slow(seconds=0), 4, shuffle=True, seed=3))
    loader = Loader(Slow(), 4, shuffle=True, seed=3, workers="auto", persistent=True)
    assert batches_of(loader) == fixed
    assert loader.tuning is not None
    assert any(line.startswith("2 -> ") for line in loader.tuning.log), loader.tuning.log
    assert batches_of(loader) != fixed, "it is another epoch"
    assert f"workers={loader.stats()['workers']}" in repr(loader)


@pytest.mark.usefixtures("quick")
def test_a_stream_that_the_loader_shares_out() -> None:
    loader = DataLoader(Stream(seconds=0.002), batch_size=2, num_workers="auto", shard=True)
    assert torch.cat(list(loader)).tolist() == list(range(300))


@pytest.mark.slow
def test_workers_come_and_go_in_the_middle_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is decided, and however often: every sample once, in order."""
    counts = [1, 5, 2, 4, 1, 3] * 20

    def decide(tuning: tuning_module.Tuning, period: Any) -> bool:
        tuning.count = counts.pop()
        return True

    monkeypatch.setattr(tuning_module, "_LEAST_BATCHES", 2)
    monkeypatch.setattr(tuning_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(tuning_module, "_EVERY", 1)
    monkeypatch.setattr(tuning_module.Tuning, "decide", decide)
    monkeypatch.setattr(tuning_module.Tuning, "is_refused", lambda tuning, count: None)
    for persistent in (False, True):
        loader = DataLoader(Slow(), 4, num_workers="auto", engine="process", persistent_workers=persistent, seed=0)
        for _ in range(2):
            assert [index for batch in loader for index in batch[0].tolist()] == list(range(400))
        loader.close()
    assert len(counts) < 112, "it was decided often"


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("before", "after"), [("auto", 0), ("auto", 2), (2, "auto"), (0, "auto")])
def test_a_state_goes_on_with_any_number(before: Any, after: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    fixed = batches_of(DataLoader(Slow(seconds=0), **options))
    loader = DataLoader(Slow(seconds=0.001), num_workers=before, **options)
    batches = iter(loader)
    first = [[part.tolist() for part in next(batches)] for _ in range(60)]
    state = loader.state_dict()
    other = DataLoader(Slow(seconds=0.001), num_workers=after, **options)
    other.load_state_dict(state)
    assert first + batches_of(other) == fixed


# -- with what it begins -----------------------------------------------------------------------------------------------


def test_a_tiny_dataset_ends_inline() -> None:
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=4, num_workers="auto", persistent_workers=True)
    assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(64))
    assert (loader.num_workers, loader.stats()["engine"]) == (0, "inline")
    assert loader.tuning is not None
    assert loader.tuning.log[0].startswith("0 workers: a batch takes 0.")
    assert len(list(loader)) == 16
    assert len(loader.tuning.log) == 1, "it was looked at once"


def test_a_tiny_dataset_has_workers_if_something_needs_them() -> None:
    dataset = TensorDataset(torch.arange(64))
    for options in ({"engine": "process"}, {"timeout": 60}, {"worker_init_fn": int}, {"max_memory_per_worker": "9GB"}):
        loader: Any = DataLoader(dataset, batch_size=4, num_workers="auto", **options)
        assert len(list(loader)) == 16
        assert loader.num_workers > 0


def test_own_streams_keep_their_number() -> None:
    loader = DataLoader(Stream(40), batch_size=4, num_workers="auto")
    assert torch.cat(list(loader)).tolist() == list(range(40))
    assert loader.num_workers == 1
    assert loader.tuning is not None
    assert "shard=True" in loader.tuning.log[0]
    assert len(loader.tuning.log) == 1
    one = DataLoader(Stream(9), batch_size=3, num_workers=1, prefetch_factor="auto")
    assert torch.cat(list(one)).tolist() == list(range(9))


class Counting(Slow):
    """A dataset with a state."""

    made = 0

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


def test_a_dataset_with_a_state_keeps_its_number() -> None:
    loader = DataLoader(Counting(40, 0), batch_size=4, num_workers="auto")
    assert len(list(loader)) == 10
    assert loader.num_workers == 2
    assert loader.tuning is not None
    assert "state" in loader.tuning.log[0]


def test_what_fails_is_told_by_the_workers() -> None:
    class Failing(Slow):
        def __getitem__(self, index: int) -> tuple[int, float]:
            raise OSError("no such sample")

    with pytest.raises(OSError, match="no such sample"):
        list(DataLoader(Failing(), num_workers="auto"))


def in_daemon(connection: Any) -> None:
    loader = DataLoader(Slow(40), batch_size=4, num_workers="auto", seed=3)
    batches = batches_of(loader)
    assert loader.tuning is not None
    connection.send((batches, loader.num_workers, loader.tuning.log))


def test_a_process_that_may_have_no_children_makes_batches_itself() -> None:
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    process = context.Process(target=in_daemon, args=(far,), daemon=True)
    process.start()
    assert near.poll(60)
    batches, workers, log = near.recv()
    process.join()
    assert batches == batches_of(DataLoader(Slow(40, 0), batch_size=4, seed=3))
    assert workers == 0
    assert "may not start others" in log[0]


def test_a_state_taken_while_the_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a decision there are workers that start, or that end what they have."""
    states: list[tuple[int, Any]] = []
    decide = tuning_module.Tuning.decide

    def noted(tuning: tuning_module.Tuning, period: Any) -> bool:
        tuning.count = 1 + tuning.count % 3
        changed.append(True)
        return True

    changed: list[bool] = []
    monkeypatch.setattr(tuning_module, "_LEAST_BATCHES", 2)
    monkeypatch.setattr(tuning_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(tuning_module, "_EVERY", 1)
    monkeypatch.setattr(tuning_module.Tuning, "decide", noted)
    monkeypatch.setattr(tuning_module.Tuning, "is_refused", lambda tuning, count: None)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    fixed = batches_of(DataLoader(Slow(160, 0), **options))
    loader = DataLoader(Slow(160), num_workers="auto", engine="process", **options)
    for number, _ in enumerate(loader, 1):
        if changed:
            changed.clear()
            states.append((number, loader.state_dict()))
    assert len(states) > 1
    monkeypatch.setattr(tuning_module.Tuning, "decide", decide)
    for number, state in states:
        other = DataLoader(Slow(160, 0), **options)
        other.load_state_dict(state)
        assert batches_of(other) == fixed[number:]


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_other_texts_are_refused() -> None:
    with pytest.raises(TypeError) as caught:
        DataLoader([1, 2], num_workers="many")  # type: ignore[arg-type]
    assert any("'auto'" in note for note in caught.value.__notes__)
    with pytest.raises(BadOption, match="or 'auto'"):
        Loader([1, 2], workers="many")  # type: ignore[arg-type]
    with pytest.raises(TypeError) as caught:
        DataLoader([1, 2], num_workers=1, prefetch_factor="much")  # type: ignore[arg-type]
    assert any("'auto'" in note for note in caught.value.__notes__)
    with pytest.raises(BadOption, match="or 'auto'"):
        Loader([1, 2], workers=1, prefetch="much")  # type: ignore[arg-type]


def test_prefetch_alone() -> None:
    loader = DataLoader(Slow(80), batch_size=4, num_workers=2, prefetch_factor="auto")
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(80))
    assert (loader.num_workers, loader.prefetch_factor) == (2, 2)
    assert DataLoader([1], prefetch_factor="auto").tuning is None
    assert len(list(Loader(Slow(80), 4, workers=2, prefetch="auto"))) == 20


def test_a_number_that_is_given_is_not_changed() -> None:
    assert DataLoader([1], num_workers=2).tuning is None
    assert Loader([1], workers=2).tuning is None


def test_whoever_sets_the_number_has_that_number() -> None:
    loader = DataLoader(Slow(40), batch_size=4, num_workers="auto")
    assert loader.num_workers == 2
    loader.num_workers = 1
    assert len(list(loader)) == 10
    assert (loader.num_workers, loader.stats()["workers"], loader.tuning) == (1, 1, None)


def test_copies_and_pickles() -> None:
    loader = DataLoader(Slow(40), batch_size=4, num_workers="auto", engine="process")
    expected = batches_of(DataLoader(Slow(40, 0), batch_size=4, seed=0))
    others: list[Any] = [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
    for other in others:
        assert [batch[0].tolist() for batch in other] == [batch[0] for batch in expected]
        assert other.tuning is not loader.tuning
        assert other.tuning.log


def test_a_worker_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    start = Driver._start_another

    def refuse(driver: Driver, worker: int) -> None:
        if worker >= 3:
            driver.machine.not_started(worker, feedline.errors.WorkerStartError("too many processes"))
        else:
            start(driver, worker)

    monkeypatch.setattr(Driver, "_start_another", refuse)
    loader = DataLoader(Slow(), batch_size=4, num_workers="auto", engine="process")
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(400))
    assert loader.num_workers == 3
    assert loader.tuning is not None
    assert "4 -> 3 workers: the system refused to start more." in loader.tuning.log
