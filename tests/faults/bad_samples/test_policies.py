"""Which action applies to which sample, what replacing and retrying do, and how many may fail."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.errors import BadOption, TooManyBadSamples
from feedline.faults import Failure, Policy, Replace, Retry, Verdict
from tests.faults.bad_samples.samples import Flaky, cut
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Bad,
    Numbers,
    Stream,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    on_every_engine,
    outcomes_of,
    plain,
)

pytestmark = pytest.mark.sample(13)


def decide(failure: Failure) -> Any:
    """Skip odd indices, replace 4, retry the rest a few times."""
    if failure.index % 2:
        return "skip"
    if failure.index == 4:
        return Verdict("replace", index=0)
    return Retry(1, then="raise", wait_s=0.0)


@everywhere
def test_a_function_can_be_a_policy(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(16, {3, 4, 8}), on_error=decide, **on(engine))
    outcomes = outcomes_of(loader)
    assert isinstance(outcomes.pop(2), Bad)
    assert outcomes == [[0, 1, 2], [0, 5, 6, 7], [12, 13, 14, 15]]
    assert [(fault.index, fault.action) for fault in loader.faults] == [(3, "skip"), (4, "replace"), (8, "raise")]


@everywhere
def test_a_policy_function_that_fails_or_returns_nonsense_raises(loader_kind: str, engine: str) -> None:
    def fails(failure: Failure) -> Any:
        raise ArithmeticError("in the policy")

    outcomes = outcomes_of(make(loader_kind, Numbers(8, {1}), on_error=fails, **on(engine)))
    assert isinstance(outcomes[0], ArithmeticError)
    assert outcomes[1:] == [[4, 5, 6, 7]]

    outcomes = outcomes_of(make(loader_kind, Numbers(8, {1}), on_error=lambda failure: "perhaps", **on(engine)))
    assert isinstance(outcomes[0], BadOption)
    assert "perhaps" in str(outcomes[0])
    assert outcomes[1:] == [[4, 5, 6, 7]]


@on_every_engine
def test_max_failures_limits_the_number_of_bad_samples(loader_kind: str, engine: str, workers: int) -> None:
    policy = Policy(otherwise="skip", max_failures=2)
    loader = make(loader_kind, Numbers(40, {2, 9, 20, 30}), on_error=policy, **on(engine, workers))
    batches = iter(loader)
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples, match="max_failures=2") as caught:
        delivered.extend(plain(batch) for batch in batches)
    assert len(delivered) == 5, "up to the batch with the third bad sample"
    assert indices_of(caught.value.faults) == [2, 9, 20]
    with pytest.raises(TooManyBadSamples):
        next(batches)


@everywhere
def test_the_budget_starts_anew_with_each_epoch(loader_kind: str, engine: str) -> None:
    """Streams reach the same bad samples in every epoch."""
    policy = Policy(otherwise="skip", max_failures=2)
    stream = Stream(Numbers(12, {1, 5}), splits=False)
    loader = make(loader_kind, stream, 4, shard=True, on_error=policy, **on(engine))
    for _ in range(3):
        assert sorted(itertools.chain(*batches_of(loader))) == [0, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@everywhere
def test_a_function_names_the_replacement(loader_kind: str, engine: str) -> None:
    names = {"a": 1, "b": None, "c": 3, "d": 4}

    class Named:
        def __getitem__(self, name: str) -> int:
            if names[name] is None:
                raise Bad(name)
            return names[name]  # type: ignore[return-value]

        def __len__(self) -> int:
            return 4

    loader = make(
        loader_kind,
        Named(),
        2,
        sampler=["a", "b", "c", "d"],
        on_error=Replace(by=lambda name: "d"),
        **on(engine),
    )
    assert batches_of(loader) == [[1, 4], [3, 4]]
    assert batches_of(loader) == [[1, 4], [3, 4]]
    [fault] = loader.faults
    assert (fault.index, fault.replacement) == ("b", "d")
    without = make(loader_kind, Named(), 2, sampler=["a", "b"], on_error="replace", **on(engine))
    with pytest.raises(Bad) as caught:
        list(without)
    assert "no neighbour" in "\n".join(caught.value.__notes__)


@everywhere
def test_a_sample_is_retried_until_it_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    dataset = Flaky(once, 12, {2, 7}, times=2)
    loader = make(loader_kind, dataset, on_error=Retry(3, wait_s=0.001), **on(engine))
    assert batches_of(loader) == cut(range(12))
    assert [(fault.index, fault.action, fault.attempt) for fault in loader.faults] == [(2, "retry", 3), (7, "retry", 3)]
    assert once.count(2) == once.count(7) == 3
    assert not loader.faults.quarantined
    assert loader.stats()["faults"]["retry"] == 2


def test_a_retry_in_a_thread_does_not_outlive_its_loader() -> None:
    """A worker that waits for half an hour ends when its batch is no longer needed."""
    began = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                began.set()
            return super().__getitem__(index)

    policy = Retry(1, wait_s=1800.0, longest_s=1800.0)
    batches = iter(feedline.Loader(Slow(8, {4}), 4, workers=1, engine="thread", on_error=policy))
    assert plain(next(batches)) == [0, 1, 2, 3]
    assert began.wait(100)
    batches.close()
    # The thread is gone, which the leak check of every test verifies.
