"""Finding samples that always kill their worker."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import WorkerDied
from tests.faults.deaths import COUNT, Once, die
from tests.faults.loaders import (
    Augmented,
    Deadly,
    Numbers,
    batches_of,
    indices_of,
    make,
    mostly_loader,
    outcomes_of,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(10)]


FATAL = {
    "one": {20},
    "two in one batch": {20, 22},
    "the first": {0},
    "the last": {COUNT - 1},
    "neighbours": {19, 20, 21},
}
FATAL_POLICIES: dict[str, Any] = {"skip": "skip", "replace": "replace"}


@functools.cache
def without_deaths(kind: str, policy: str, case: str, batch_size: int | None) -> tuple[Any, ...]:
    """Return the outcome if the samples raised instead of killing."""
    loader = make(kind, Augmented(COUNT, FATAL[case]), batch_size, seed=7, on_error=FATAL_POLICIES[policy])
    return batches_of(loader), batches_of(loader), sorted(indices_of(loader.faults))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "policy", "case"),
    [
        (8, "skip", "two in one batch"),
        (8, "replace", "neighbours"),
        (1, "skip", "the last"),
        (33, "skip", "the first"),
        (None, "replace", "one"),
    ],
)
def test_a_sample_that_kills_is_handled_like_one_that_raises(policy: str, case: str, batch_size: int | None) -> None:
    kind = "Loader" if batch_size in (1, 33) else "DataLoader"
    loader = make(
        kind, Deadly(COUNT, FATAL[case]), batch_size, workers=2, seed=7, on_error=FATAL_POLICIES[policy], restarts=64
    )
    first = batches_of(loader)
    restarted = loader.stats()["restarted_workers"]
    second = batches_of(loader)
    assert (first, second, sorted(indices_of(loader.faults))) == without_deaths(kind, policy, case, batch_size)
    assert loader.stats()["restarted_workers"] == restarted, "it is not requested again"
    assert {fault.stage for fault in loader.faults} == {"worker"}
    assert all(fault.error == "feedline.errors.WorkerDied" for fault in loader.faults)
    assert set(loader.faults.quarantined) == FATAL[case]


@pytest.mark.slow
@mostly_loader
@pytest.mark.parametrize("batch_size", [1, 8, 33])
def test_the_error_names_a_sample_that_kills(loader_kind: str, batch_size: int) -> None:
    loader = make(loader_kind, Deadly(COUNT, {20, 44}), batch_size, workers=2, seed=7, restarts=64)
    outcomes = outcomes_of(loader)
    expected = batches_of(make(loader_kind, Augmented(COUNT), batch_size, seed=7))
    assert len(outcomes) == len(expected)
    for outcome, batch in zip(outcomes, expected, strict=True):
        fatal = {20, 44} & {int(sample[0]) for sample in batch}
        if not fatal:
            assert outcome == batch
            continue
        assert type(outcome) is WorkerDied
        assert f"Sample {min(fatal)} kills" in str(outcome)
        assert "SIGKILL" in str(outcome)
        assert re.search(r"pid\(s\) \d+", str(outcome))
    assert indices_of(loader.faults) == [20, 44]
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
