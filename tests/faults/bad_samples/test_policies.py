"""Which action applies to which sample, and how many may fail."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from feedline.errors import BadOption, TooManyBadSamples
from feedline.faults import Failure, Policy, Retry, Verdict
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
