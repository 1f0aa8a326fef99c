"""Loaders that choose their number of workers: same batches, same states, and the reasons they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import feedline
from feedline import DataLoader, Loader
from feedline.delivery.driver import auto as auto_module
from feedline.delivery.driver import tuning as tuning_module
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.probe import Probe
from feedline.delivery.machine.controller import Controller
from feedline.errors import BadOption


class Drawing(Dataset[Any]):
    """Samples that draw random numbers."""

    def __init__(self, count: int = 400) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(feedline.rng().random())


class Stream(IterableDataset[int]):
    """A stream that does not split itself."""

    def __init__(self, count: int = 300) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first probe find that batches sleep, so that threads suffice."""
    found = Probe(batch_s=0.008, cpu_share=0.1, threads=8, thread_gain=7.9)
    monkeypatch.setattr(auto_module, "probe", lambda *_: found)


@pytest.fixture
def grows(monkeypatch: pytest.MonkeyPatch, sleeps: None) -> None:
    """Make the controller add workers after a few batches, whatever was measured."""

    def decide(controller: Controller, seen: Any) -> bool:
        assert seen.seconds > 0
        before = controller.count
        controller._set(min(4, 2 * before), "it is a test")
        return controller.count != before

    monkeypatch.setattr(tuning_module, "_LEAST_BATCHES", 4)
    monkeypatch.setattr(tuning_module, "_LEAST_S", 0.0)
    monkeypatch.setattr(tuning_module, "_EVERY", 1)
    monkeypatch.setattr(Controller, "decide", decide)


def batches_of(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


# -- the same batches ---


@pytest.mark.usefixtures("grows")
@pytest.mark.parametrize("engine", ["auto", pytest.param("process", marks=pytest.mark.slow), "thread"])
def test_batches_do_not_depend_on_the_number_of_workers(engine: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    fixed = batches_of(DataLoader(Drawing(), **options))
    assert batches_of(DataLoader(Drawing(), num_workers=2, **options)) == fixed
    loader = DataLoader(Drawing(), num_workers="auto", engine=engine, **options)
    assert batches_of(loader) == fixed
    assert loader.tuning is not None
    assert loader.tuning.log[-1] == "2 -> 4 workers: it is a test."
    assert loader.stats().settings["auto"] == "searching"


@pytest.mark.usefixtures("grows")
def test_a_stream_split_by_the_loader_works_with_auto() -> None:
    loader = DataLoader(Stream(), batch_size=2, num_workers="auto", shard=True)
    assert torch.cat(list(loader)).tolist() == list(range(300))


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("grows")
@pytest.mark.parametrize(("before", "after"), [("auto", 0), (2, "auto")])
def test_a_state_can_be_resumed_with_any_number_of_workers(before: Any, after: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    fixed = batches_of(DataLoader(Drawing(), **options))
    loader = DataLoader(Drawing(), num_workers=before, **options)
    batches = iter(loader)
    first = [[part.tolist() for part in next(batches)] for _ in range(60)]
    state = loader.state_dict()
    other = DataLoader(Drawing(), num_workers=after, **options)
    other.load_state_dict(state)
    assert first + batches_of(other) == fixed


# -- the first number --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first probe find batches that are cheaper than a hand-over, however busy the machine is."""
    found = Probe(batch_s=3e-4, cpu_share=1.0, threads=0, thread_gain=0.0)
    monkeypatch.setattr(auto_module, "probe", lambda *_: found)


@pytest.mark.usefixtures("tiny_batches")
def test_tiny_batches_are_made_inline_and_the_verdict_agrees() -> None:
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=4, num_workers="auto", persistent_workers=True)
    assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(64))
    assert (loader.num_workers, loader.stats()["engine"]) == (0, "inline")
    assert loader.tuning is not None
    assert loader.tuning.log[0] == (
        "0 workers: a batch takes 0.3 ms, and handing it over from a worker costs about 0.5 ms."
    )
    assert loader.stats().settings["auto"] == "settled"
    assert "Use " not in loader.stats().verdict
    assert len(list(loader)) == 16
    assert len(loader.tuning.log) == 1, "it was probed once"


def test_a_stream_that_is_not_split_gets_one_worker() -> None:
    loader = DataLoader(Stream(40), batch_size=4, num_workers="auto")
    assert torch.cat(list(loader)).tolist() == list(range(40))
    assert loader.num_workers == 1
    assert loader.tuning is not None
    assert "shard=True" in loader.tuning.log[0]
    assert len(loader.tuning.log) == 1
    one = DataLoader(Stream(9), batch_size=3, num_workers=1, prefetch_factor="auto")
    assert torch.cat(list(one)).tolist() == list(range(9))


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_rejects_other_strings_than_auto() -> None:
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


def test_the_loader_continues_without_workers_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, grows: None
) -> None:
    start = Driver._start_another

    def refuse(driver: Driver, worker: int) -> None:
        if worker >= 3:
            driver.machine.crew.not_started(worker, feedline.errors.WorkerStartError("too many processes"))
        else:
            start(driver, worker)

    monkeypatch.setattr(Driver, "_start_another", refuse)
    loader = DataLoader(Drawing(), batch_size=4, num_workers="auto", engine="process")
    assert [index for batch in loader for index in batch[0].tolist()] == list(range(400))
    assert loader.num_workers == 3
    assert loader.tuning is not None
    assert "4 -> 3 workers: the system refused to start more." in loader.tuning.log
