"""Failing samples are skipped, which makes their batches smaller."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest

from feedline.errors import TooManyBadSamples
from feedline.faults import Policy, Replace, Retry
from tests.faults.bad_samples.samples import cut, refuse_five
from tests.faults.loaders import (
    Augmented,
    ByRng,
    Numbers,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    on_every_engine,
)

pytestmark = pytest.mark.sample(24)

SKIPPING = {
    "the last batch": (20, {16, 17, 18, 19}),
    "many": (40, {1, 2, 3, 9, 12, 13, 14, 15, 20, 33, 38, 39}),
    "short last": (18, {3, 17}),
    "nearly all": (8, {0, 1, 2, 4, 5, 6, 7}),
}


@everywhere
@pytest.mark.parametrize("case", SKIPPING)
def test_skipped_samples_make_batches_smaller(loader_kind: str, engine: str, case: str) -> None:
    count, bad = SKIPPING[case]
    policy = Policy(otherwise="skip", max_share=1.0)
    loader = make(loader_kind, Numbers(count, bad), on_error=policy, **on(engine))
    for _ in range(2):
        assert batches_of(loader) == without_bad(cut(range(count), 4), bad), "every batch in its place, and none empty"
    assert indices_of(loader.faults) == sorted(bad), "logged once, then quarantined"
    assert {fault.action for fault in loader.faults} == {"skip"}
    assert sorted(loader.faults.quarantined) == sorted(bad)


def without_bad(batches: Iterable[list[int]], bad: Collection[int]) -> list[list[int]]:
    """Return the batches without bad samples, and without batches that are left empty."""
    shorter = ([index for index in batch if index not in bad] for batch in batches)
    return [batch for batch in shorter if batch]


def outcome_of(kind: str, dataset: Any, engine: str, workers: int = 2, **options: Any) -> tuple[Any, Any, Any]:
    """Return the batches of two epochs, and the samples in the log."""
    loader = make(kind, dataset, **options, **on(engine, workers))
    try:
        first = batches_of(loader)
        second = batches_of(loader)
    finally:
        loader.close()
    return first, second, [(fault.index, fault.action, fault.epoch, fault.replacement) for fault in loader.faults]


POLICIES: dict[str, Any] = {
    "skip": "skip",
    "replace": "replace",
    "replace by a function": Replace(by=functools.partial(lambda step, index: (index + step) % 33, 10)),
    "retry, then skip": Retry(1, then="skip", wait_s=0.001),
    "retry, then replace": Retry(1, then="replace", wait_s=0.0),
}


@functools.cache
def expected(kind: str, dataset: type[Numbers], policy: str) -> tuple[Any, Any, Any]:
    return outcome_of(kind, dataset(33, {2, 3, 9, 20, 31}), "inline", on_error=POLICIES[policy], seed=5, shuffle=True)


@on_every_engine
@pytest.mark.parametrize(
    "policy",
    [name if name in ("skip", "replace") else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES],
)
def test_the_outcome_is_the_same_on_every_engine(loader_kind: str, engine: str, workers: int, policy: str) -> None:
    kind = ByRng if engine == "thread" else Augmented
    persistent = workers == 3
    outcome = outcome_of(
        loader_kind,
        kind(33, {2, 3, 9, 20, 31}),
        engine,
        workers,
        on_error=POLICIES[policy],
        seed=5,
        shuffle=True,
        persistent=persistent,
    )
    assert outcome == expected(loader_kind, kind, policy)


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("process", 1), ("process", 2)])
@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_bad_sample_that_the_sampler_repeats_is_logged_once(
    engine: str, workers: int, policy: str, in_order: bool
) -> None:
    """A sampler may yield a failing sample again, before and after its failure is known."""
    sampler = [0, 1, 2, 3, 2, 5, 6, 7, 8, 2, 10, 11, 12, 13, 14, 2, 16, 2]
    options = {} if in_order or engine == "inline" else {"in_order": False}
    loader = make("Loader", Numbers(20, {2}), sampler=sampler, on_error=policy, **options, **on(engine, workers))
    batches = batches_of(loader)
    delivered = sorted(itertools.chain(*batches))
    if policy == "skip":
        assert delivered == sorted(index for index in sampler if index != 2)
    else:
        assert delivered == sorted(3 if index == 2 else index for index in sampler)
    assert indices_of(loader.faults) == [2], "logged once, then quarantined"


@everywhere
def test_if_every_sample_fails_too_many_bad_samples_is_raised(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(10, range(10)), on_error="skip", **on(engine))
    for _ in range(3):
        delivered = []
        with pytest.raises(TooManyBadSamples, match="max_share") as caught:
            delivered.extend(loader)
        assert delivered == []
        assert len(caught.value.faults) == 10
        assert "sample 0: " in str(caught.value)


@everywhere
@pytest.mark.parametrize(("count", "bad"), [(20, {3}), (18, {17}), (17, {0}), (20, {1, 2, 3, 4, 17})])
def test_drop_last_drops_only_the_last_batch_of_the_order(
    loader_kind: str, engine: str, count: int, bad: set[int]
) -> None:
    loader = make(loader_kind, Numbers(count, bad), on_error="skip", drop_last=True, **on(engine))
    assert batches_of(loader) == without_bad(cut(range(count // 4 * 4), 4), bad)


@everywhere
def test_a_batch_that_cannot_be_collated_is_skipped(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12), collate_fn=refuse_five, on_error="skip", **on(engine))
    assert batches_of(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    [fault] = loader.faults
    assert (fault.index, fault.stage, fault.action) == ([4, 5, 6, 7], "collate", "skip")
    assert not loader.faults.quarantined, "its samples are not blamed"
    loader.close()
