"""Programs resumed by Accelerate, Lightning and the Trainer continue after any step with the remaining samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import run_ranks

# Any, throughout: what ranks report.
EPOCHS, STEPS, BATCH = 3, 2, 2
PACKAGES = {"accelerate": ["accelerate"], "lightning": ["lightning"], "trainer": ["transformers", "accelerate"]}
DRAWN = {
    "accelerate": {"seeded", "seeded, workers", "own sampler", "dispatched"},
    "lightning": {"seeded, in order", "seeded", "seeded, workers", "own sampler", "torch's sampler", "limited"},
    "trainer": {"seeded"},
}
"""Loaders whose samples draw the same random numbers after a resumption."""


def indices(batches: list[Any]) -> list[Any]:
    """Return epochs and samples, without the random numbers that the samples drew."""
    return [[epoch, [int(sample[0]) for sample in batch]] for epoch, batch in batches]


def check_rest(case: dict[str, Any], *, draws: bool) -> None:
    """Check that every resumed run equals the rest of the whole run; `draws`: including random numbers."""
    whole = case["whole"]
    assert case["rests"]
    for step, (done, rest) in case["rests"].items():
        assert indices(rest) == indices(whole[done:]), f"after {step}"
        assert not draws or rest == whole[done:], f"after {step}"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("framework", PACKAGES)
def test_resumed_runs_continue_exactly(framework: str, count: int, tmp_path: Path) -> None:
    for package in PACKAGES[framework]:
        need(package)
    ranks = run_ranks(Path(__file__).with_name(f"{framework}_resume_ranks.py"), count, folder=tmp_path)
    for name in ranks[0]["cases"]:
        kind, _, mode = name.partition(": ")
        cases = [rank["cases"][name] for rank in ranks]
        if kind != "limited":
            found = [batch for case in cases for batch in indices(case["whole"])]
            for epoch in range(EPOCHS):
                samples = sorted(index for number, batch in found if number == epoch for index in batch)
                assert samples == list(range(count * STEPS * BATCH)), f"every sample comes once per epoch: {name}"
        # Without a seed, batches that were skipped rather than restored come in another order.
        if (framework, kind, mode) != ("accelerate", "shuffled", "skipped"):
            for case in cases:
                check_rest(case, draws=kind in DRAWN[framework])
    assert all(set(rank["iterators"]) == {"TorchBatches"} for rank in ranks), "feedline delivers the batches"
