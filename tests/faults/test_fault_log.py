"""The fault log of both loaders: saving and restoring it, and quarantined samples."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import TooManyBadSamples
from feedline.faults import FaultLog, Policy
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Augmented,
    Numbers,
    StatefulStream,
    Stream,
    batches_of,
    indices_of,
    make,
    on,
    plain,
)


class CountsRequests(Numbers):
    """Records how often samples of `bad` are requested."""

    def __init__(self, once: Once, count: int, bad: Iterable[int]) -> None:
        super().__init__(count, bad)
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            self.once.times(index)
        return super().__getitem__(index)


# -- quarantine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader_kind", "engine", "policy"),
    [("Loader", "inline", "skip"), ("DataLoader", "thread", "replace"), ("Loader", "process", "replace")],
)
def test_quarantined_samples_are_not_requested(loader_kind: str, engine: str, policy: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    dataset = CountsRequests(once, 20, {2, 9})
    loader = make(loader_kind, dataset, on_error=policy, persistent=engine == "process", **on(engine))
    first = batches_of(loader)
    assert [once.count(index) for index in (2, 9)] == [1, 1]
    assert batches_of(loader) == first
    assert batches_of(loader) == first
    assert [once.count(index) for index in (2, 9)] == [1, 1]
    assert loader.faults.release(2)
    assert not loader.faults.release(2)
    assert batches_of(loader) == first
    assert [once.count(index) for index in (2, 9)] == [2, 1]
    assert indices_of(loader.faults) == [2, 9, 2]
    assert [fault.epoch for fault in loader.faults] == [0, 0, 3]
    loader.faults.clear()
    assert batches_of(loader) == first
    assert [once.count(index) for index in (2, 9)] == [3, 2]
    assert indices_of(loader.faults) == [2, 9]
    loader.close()


# -- states ----------------------------------------------------------------------------------------------------------


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_the_log_is_part_of_the_state(tmp_path: Path) -> None:
    once = Once(tmp_path)
    loader = make("Loader", CountsRequests(once, 20, {2, 9}), on_error=Policy(otherwise="skip", max_share=1.0))
    list(loader)
    state = through_json(loader.state_dict())
    other = make("Loader", CountsRequests(once, 20, {2, 9}), on_error="skip", workers=1)
    other.load_state_dict(state)
    assert list(other.faults) == list(loader.faults)
    assert sorted(other.faults.quarantined) == [2, 9]
    assert other.stats()["faults"] == loader.stats()["faults"] == {"raise": 0, "skip": 2, "retry": 0, "replace": 0}
    assert batches_of(other) == batches_of(loader)
    assert [once.count(index) for index in (2, 9)] == [1, 1]


def test_the_log_has_only_faults_of_delivered_batches() -> None:
    """Workers run ahead of the training loop; what failed there is made again after a resumption."""
    loader = make("DataLoader", Numbers(40, {2, 6, 10, 14, 18}), on_error="skip", workers=2, prefetch=4)
    batches = iter(loader)
    for count in range(1, 5):
        next(batches)
        assert indices_of(loader.faults) == [2, 6, 10, 14, 18][:count]
        assert len(loader.state_dict()["faults"]["entries"]) == count


# Any: values of faults.
def facts_of(log: FaultLog) -> list[tuple[Any, ...]]:
    return [(fault.index, fault.action, fault.epoch, fault.replacement) for fault in log]


@pytest.mark.parametrize(
    ("kind", "shard", "loader_kind", "engine", "workers"),
    [
        (Stream, False, "Loader", "inline", 0),
        (StatefulStream, True, "Loader", "inline", 0),
        (StatefulStream, False, "DataLoader", "process", 2),
        pytest.param(Stream, True, "Loader", "process", 1, marks=pytest.mark.slow),
    ],
)
def test_resuming_a_stream_from_every_batch_is_exact(
    loader_kind: str, kind: type[Stream], shard: bool, engine: str, workers: int
) -> None:
    def loader() -> Any:
        stream = kind(Augmented(30, {0, 5, 6, 17, 29}), splits=not shard)
        return make(loader_kind, stream, shard=shard, on_error="skip", seed=5, **on(engine, workers))

    whole = loader()
    batches: list[Any] = []
    states = []
    for batch in whole:
        batches.append(plain(batch))
        states.append(through_json(whole.state_dict()))
    for number, state in list(enumerate(states[:-1], 1))[:: 3 if workers else 1]:
        resumed = loader()
        resumed.load_state_dict(state)
        assert batches_of(resumed) == batches[number:]
        assert facts_of(resumed.faults) == facts_of(whole.faults)


def test_a_copy_has_the_faults_of_a_loaded_state_only() -> None:
    def loader() -> Any:
        return make("Loader", Numbers(12, {0, 4}), on_error="skip")

    first, resumed = loader(), loader()
    batches_of(first)
    assert len(first.faults) == 2
    assert len(copy.copy(first).faults) == 0, "a copy is at the beginning"
    resumed.load_state_dict(first.state_dict())
    twin = copy.copy(resumed)
    assert twin.state_dict() == resumed.state_dict()
    assert sorted(twin.faults.quarantined) == [0, 4]
    twin.faults.clear()
    assert len(resumed.faults) == 2, "each has its own log"


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_a_larger_budget_resumes_after_too_many_bad_samples(engine: str) -> None:
    """The state is that after the last delivered batch, on every engine."""

    def loader(most: int) -> Any:
        policy = Policy(otherwise="skip", max_failures=most)
        return make("Loader", Numbers(40, {2, 9, 20}), on_error=policy, seed=5, **on(engine))

    first = loader(2)
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples):
        delivered.extend(plain(batch) for batch in first)
    state = through_json(first.state_dict())
    resumed = loader(3)
    resumed.load_state_dict(state)
    rest = batches_of(resumed)
    assert delivered + rest == batches_of(loader(3))
