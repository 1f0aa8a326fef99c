"""The fault log of both loaders: saving and restoring it, and quarantined samples."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import TooManyBadSamples
from feedline.faults import FaultLog, Policy, Replace, Retry
from tests.faults.deaths import Once
from tests.faults.loaders import (
    LOADERS,
    Augmented,
    Numbers,
    StatefulStream,
    Stream,
    batches_of,
    everywhere,
    indices_of,
    make,
    mostly_dataloader,
    mostly_loader,
    on,
    plain,
)

pytestmark = pytest.mark.sample(8)


@pytest.fixture(params=LOADERS)
def loader_kind(request: pytest.FixtureRequest) -> str:
    """Both loaders in turn."""
    name: str = request.param
    return name


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


@everywhere
@pytest.mark.parametrize("policy", ["skip", "replace"])
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


@mostly_loader
def test_the_log_is_part_of_the_state(loader_kind: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    loader = make(loader_kind, CountsRequests(once, 20, {2, 9}), on_error=Policy(otherwise="skip", max_share=1.0))
    list(loader)
    state = through_json(loader.state_dict())
    other = make(loader_kind, CountsRequests(once, 20, {2, 9}), on_error="skip", workers=1)
    other.load_state_dict(state)
    assert list(other.faults) == list(loader.faults)
    assert sorted(other.faults.quarantined) == [2, 9]
    assert other.stats()["faults"] == loader.stats()["faults"] == {"raise": 0, "skip": 2, "retry": 0, "replace": 0}
    assert batches_of(other) == batches_of(loader)
    assert [once.count(index) for index in (2, 9)] == [1, 1]


@mostly_dataloader
def test_the_log_has_only_faults_of_delivered_batches(loader_kind: str) -> None:
    """Workers run ahead of the training loop; what failed there is made again after a resumption."""
    loader = make(loader_kind, Numbers(40, {2, 6, 10, 14, 18}), on_error="skip", workers=2, prefetch=4)
    batches = iter(loader)
    for count in range(1, 5):
        next(batches)
        assert indices_of(loader.faults) == [2, 6, 10, 14, 18][:count]
        assert len(loader.state_dict()["faults"]["entries"]) == count


POLICIES: dict[str, Any] = {
    "skip": "skip",
    "replace": "replace",
    "replace by a function": Replace(by=lambda index: (index + 10) % 42),
    "retry, then skip": Retry(1, then="skip", wait_s=0.0),
}
BAD = {2, 3, 9, 20, 31, 40, 41}


# Any: values of faults.
def facts_of(log: FaultLog) -> list[tuple[Any, ...]]:
    return [(fault.index, fault.action, fault.epoch, fault.replacement) for fault in log]


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [name if name in ("skip", "replace") else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES],
)
@mostly_loader
def test_resuming_from_every_batch_is_exact(loader_kind: str, policy: str) -> None:
    """Saved and resumed with different workers, the rest and the next epoch are equal to the bit."""

    def loader(engine: str, workers: int) -> Any:
        options = {"on_error": POLICIES[policy], "seed": 5, "shuffle": True}
        return make(loader_kind, Augmented(42, BAD), **options, **on(engine, workers))

    inline = [*batches_of(whole := loader("inline", 0)), *batches_of(whole)]
    for engine, workers in (("inline", 0), ("process", 3)):
        saved = loader(engine, workers)
        states = [through_json(saved.state_dict()) for _ in range(2) for _ in saved]
        assert facts_of(saved.faults) == facts_of(whole.faults)
        for number, state in enumerate(states[:-1], 1):
            others = number % 6 == 0  # starting workers is slow
            resumed = loader("process", 1 + number % 3) if others else loader("inline", 0)
            resumed.load_state_dict(state)
            rest = batches_of(resumed)
            while number + len(rest) < len(inline):
                rest += batches_of(resumed)
            assert rest == inline[number:]
            assert facts_of(resumed.faults) == facts_of(whole.faults)


@pytest.mark.parametrize("kind", [Stream, StatefulStream])
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    ("loader_kind", "engine", "workers"),
    [
        ("Loader", "inline", 0),
        ("DataLoader", "process", 2),
        pytest.param("Loader", "process", 1, marks=pytest.mark.slow),
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


@mostly_dataloader
@pytest.mark.parametrize("engine", ["inline", "process"])
def test_the_budget_continues_after_a_resumption(loader_kind: str, engine: str) -> None:
    def loader() -> Any:
        policy = Policy(otherwise="skip", max_failures=2)
        return make(loader_kind, Numbers(40, {2, 9, 20}), on_error=policy, **on(engine))

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(through_json(first.state_dict()))
    with pytest.raises(TooManyBadSamples, match="max_failures=2"):
        list(resumed)


class Counting(Numbers):
    """Has a state, which outlives the epoch if its workers do."""

    requests = 0

    def __getitem__(self, index: int) -> Any:
        self.requests += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, int]:
        return {"requests": self.requests}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.requests = state["requests"]


@everywhere
@pytest.mark.parametrize("dataset", [Numbers, Counting])
def test_the_budget_begins_anew_after_the_end_of_an_epoch(loader_kind: str, engine: str, dataset: Any) -> None:
    def loader() -> Any:
        policy = Policy(otherwise="skip", max_failures=4)
        persistent = {} if engine == "inline" else {"persistent": True}
        return make(loader_kind, dataset(12, {0, 4, 8}), on_error=policy, **on(engine, 1), **persistent)

    with loader() as first, loader() as resumed:
        batches = batches_of(first)
        resumed.load_state_dict(through_json(first.state_dict()))
        assert batches_of(resumed) == batches_of(first) == batches


@mostly_loader
@pytest.mark.parametrize("engine", ["inline", "process"])
def test_a_copy_has_the_faults_of_a_loaded_state_only(loader_kind: str, engine: str) -> None:
    def loader() -> Any:
        return make(loader_kind, Numbers(12, {0, 4}), on_error="skip", **on(engine))

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


@mostly_loader
@pytest.mark.parametrize("engine", ["inline", "process"])
def test_a_larger_budget_resumes_after_too_many_bad_samples(loader_kind: str, engine: str) -> None:
    """The state is that after the last delivered batch, on every engine."""

    def loader(most: int) -> Any:
        policy = Policy(otherwise="skip", max_failures=most)
        return make(loader_kind, Numbers(40, {2, 9, 20}), on_error=policy, seed=5, **on(engine))

    first = loader(2)
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples):
        delivered.extend(plain(batch) for batch in first)
    state = through_json(first.state_dict())
    resumed = loader(3)
    resumed.load_state_dict(state)
    rest = batches_of(resumed)
    assert delivered + rest == batches_of(loader(3))
