"""Failing samples are skipped, replaced or retried, and only so many may fail."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import BadOption, TooManyBadSamples
from feedline.faults import Failure, Policy, Replace, Retry, Verdict
from tests.faults.bad_samples.samples import cut, refuse_five
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Augmented,
    Bad,
    ByRng,
    Numbers,
    batches_of,
    everywhere,
    indices_of,
    make,
    on,
    outcomes_of,
    plain,
)

BAD = {2, 3, 9, 20, 31}


def without_bad(batches: Iterable[list[int]], bad: Collection[int]) -> list[list[int]]:
    """Return the batches without bad samples, and without batches that are left empty."""
    shorter = ([index for index in batch if index not in bad] for batch in batches)
    return [batch for batch in shorter if batch]


@everywhere
@pytest.mark.parametrize(
    ("count", "bad"),
    [(40, {1, 2, 3, 9, 12, 13, 14, 15, 20, 33, 38, 39}), (18, {3, 17}), (8, {0, 1, 2, 4, 5, 6, 7})],
    ids=["many", "short last", "nearly all"],
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_skipped_samples_make_batches_smaller(
    loader_kind: str, engine: str, count: int, bad: set[int], drop_last: bool
) -> None:
    policy = Policy(otherwise="skip", max_share=1.0)
    loader = make(loader_kind, Numbers(count, bad), on_error=policy, drop_last=drop_last, **on(engine))
    whole = range(count // 4 * 4 if drop_last else count)
    for _ in range(2):
        assert batches_of(loader) == without_bad(cut(whole), bad), "every batch in its place, and none empty"
    assert indices_of(loader.faults) == sorted(bad & set(whole)), "logged once, then quarantined"
    assert {fault.action for fault in loader.faults} == {"skip"}
    assert sorted(loader.faults.quarantined) == sorted(bad & set(whole))


def outcome_of(dataset: Any, engine: str, workers: int = 2, **options: Any) -> tuple[Any, Any, Any]:
    """Return the batches of two epochs, and the samples in the log."""
    with make("DataLoader", dataset, seed=5, shuffle=True, **options, **on(engine, workers)) as loader:
        first, second = batches_of(loader), batches_of(loader)
        return first, second, [(fault.index, fault.action, fault.epoch, fault.replacement) for fault in loader.faults]


@pytest.mark.parametrize(
    ("engine", "workers", "policy"),
    [
        ("thread", 3, "skip"),
        ("thread", 2, Retry(1, then="replace", wait_s=0.0)),
        ("process", 2, "replace"),
        ("process", 1, Retry(1, then="skip", wait_s=0.001)),
    ],
)
def test_the_outcome_is_the_same_on_every_engine(engine: str, workers: int, policy: Any) -> None:
    dataset = (ByRng if engine == "thread" else Augmented)(33, BAD)
    outcome = outcome_of(dataset, engine, workers, on_error=policy, persistent=workers == 3)
    assert outcome == outcome_of(dataset, "inline", on_error=policy)


@pytest.mark.parametrize(("engine", "in_order"), [("inline", True), ("thread", True), ("thread", False)])
@pytest.mark.parametrize(("policy", "instead"), [("skip", []), ("replace", [3])])
def test_a_bad_sample_that_the_sampler_repeats_is_logged_once(
    engine: str, in_order: bool, policy: str, instead: list[int]
) -> None:
    """A sampler may yield a failing sample again, before and after its failure is known."""
    sampler = [0, 1, 2, 3, 2, 5, 6, 7, 8, 2, 10, 11, 12, 13, 14, 2, 16, 2]
    options = {} if in_order else {"in_order": False}
    loader = make("Loader", Numbers(20, {2}), sampler=sampler, on_error=policy, **options, **on(engine))
    expected = [number for index in sampler for number in (instead if index == 2 else [index])]
    assert sorted(itertools.chain(*batches_of(loader))) == sorted(expected)
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
def test_max_failures_limits_the_number_of_bad_samples(loader_kind: str, engine: str) -> None:
    policy = Policy(otherwise="skip", max_failures=2)
    batches = iter(make(loader_kind, Numbers(40, {2, 9, 20, 30}), on_error=policy, **on(engine)))
    delivered: list[Any] = []
    with pytest.raises(TooManyBadSamples, match="max_failures=2") as caught:
        delivered.extend(plain(batch) for batch in batches)
    assert len(delivered) == 5, "up to the batch with the third bad sample"
    assert indices_of(caught.value.faults) == [2, 9, 20]
    with pytest.raises(TooManyBadSamples):
        next(batches)


@everywhere
def test_a_batch_that_cannot_be_collated_is_skipped(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12), collate_fn=refuse_five, on_error="skip", **on(engine))
    assert batches_of(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    [fault] = loader.faults
    assert (fault.index, fault.stage, fault.action) == ([4, 5, 6, 7], "collate", "skip")
    assert not loader.faults.quarantined, "its samples are not blamed"


# -- forms of batches ---


class Formed:
    """A batch sampler whose batches are not lists."""

    def __init__(self, form: Callable[[list[int]], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return map(self.form, cut(range(12), 3))


class AnyNumber(Numbers):
    """Takes indices of any kind of number."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index))


@pytest.mark.parametrize(
    "form", [np.array, torch.tensor, tuple, iter, lambda batch: range(batch[0], batch[-1] + 1)], ids=repr
)
def test_policies_work_for_batches_of_any_form(form: Any) -> None:
    for policy, middle in (("skip", [3, 5]), ("replace", [3, 5, 5])):
        loader = make("DataLoader", AnyNumber(12, {4}), batch_sampler=Formed(form), on_error=policy, **on("thread", 1))
        for _ in range(2):
            assert batches_of(loader) == [[0, 1, 2], middle, [6, 7, 8], [9, 10, 11]]
        assert indices_of(loader.faults) == [4]


def test_virtual_epochs_keep_their_length() -> None:
    def virtual(engine: str) -> tuple[Any, ...]:
        with make("Loader", ByRng(23, {4, 9}), on_error="skip", seed=3, shuffle=True, **on(engine)) as loader:
            return [batches_of(epoch) for epoch in itertools.islice(loader.virtual_epochs(7), 4)], indices_of(
                loader.faults
            )

    epochs, faults = virtual("thread")
    assert [len(epoch) for epoch in epochs] == [7] * 4
    assert {len(batch) for epoch in epochs for batch in epoch} == {2, 3, 4}
    assert sorted(faults) == [4, 9]
    assert (epochs, faults) == virtual("inline")


# -- functions of the user ---


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


def fail(failure: Failure) -> Any:
    raise ArithmeticError("in the policy")


@pytest.mark.parametrize(("policy", "error"), [(fail, ArithmeticError), (lambda failure: "perhaps", BadOption)])
def test_a_policy_function_that_fails_or_returns_nonsense_raises(policy: Any, error: type[Exception]) -> None:
    outcomes = outcomes_of(make("Loader", Numbers(8, {1}), on_error=policy, **on("thread")))
    assert isinstance(outcomes[0], error)
    assert outcomes[1:] == [[4, 5, 6, 7]]


NAMES = {"a": 1, "b": None, "c": 3, "d": 4}


class Named:
    def __getitem__(self, name: str) -> int:
        number = NAMES[name]
        if number is None:
            raise Bad(name)
        return number

    def __len__(self) -> int:
        return 4


@everywhere
def test_a_function_names_the_replacement(loader_kind: str, engine: str) -> None:
    by_name = Replace(by=lambda name: "d")
    loader = make(loader_kind, Named(), 2, sampler=list(NAMES), on_error=by_name, **on(engine))
    assert batches_of(loader) == [[1, 4], [3, 4]]
    assert batches_of(loader) == [[1, 4], [3, 4]]
    [fault] = loader.faults
    assert (fault.index, fault.replacement) == ("b", "d")
    without = make(loader_kind, Named(), 2, sampler=["a", "b"], on_error="replace", **on(engine))
    with pytest.raises(Bad) as caught:
        list(without)
    assert "no neighbour" in "\n".join(caught.value.__notes__)


class Flaky(Numbers):
    """Samples of `bad` fail twice before they work."""

    def __init__(self, once: Once, count: int, bad: Iterable[int]) -> None:
        super().__init__(count, bad)
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in self.bad and self.once.times(index) <= 2:
            raise ConnectionError(f"{index} is not there yet")
        return index


@everywhere
def test_a_sample_is_retried_until_it_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    loader = make(loader_kind, Flaky(once, 12, {2, 7}), on_error=Retry(3, wait_s=0.001), **on(engine))
    assert batches_of(loader) == cut(range(12))
    assert [(fault.index, fault.action, fault.attempt) for fault in loader.faults] == [(2, "retry", 3), (7, "retry", 3)]
    assert once.count(2) == once.count(7) == 3
    assert not loader.faults.quarantined
    assert loader.stats()["faults"]["retry"] == 2


def test_a_retry_in_a_thread_does_not_outlive_its_loader() -> None:
    """A worker that waits for half an hour ends when its batch is no longer needed; every test checks for threads."""
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
