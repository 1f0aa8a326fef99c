"""Lightning goes on from a checkpoint of any step with exactly the samples that would have followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import run_ranks

need("lightning")

SCRIPT = Path(__file__).with_name("lightning_resume_ranks.py")
EPOCHS, STEPS, BATCH = 3, 2, 2
SEEDED = ["seeded", "seeded, workers", "own sampler", "torch's sampler"]
EXACT = ["in order", "generator", *SEEDED, "stream", "limited"]
"""Cases in which every epoch follows from what the checkpoint says; else the next one is shuffled anew."""


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank told of all the loaders."""
    return run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("ranks"))


def indices(batches: list[Any]) -> list[Any]:
    return [[epoch, [int(sample[0]) for sample in batch]] for epoch, batch in batches]


@pytest.mark.parametrize("name", EXACT)
def test_what_follows_is_what_would_have_followed(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        whole = rank["cases"][name]["whole"]
        for step, (done, rest) in rank["cases"][name]["rests"].items():
            assert indices(rest) == indices(whole[done:]), f"after {step}"


@pytest.mark.parametrize("name", SEEDED)
def test_random_numbers_of_samples_are_those_that_would_have_followed(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        whole = rank["cases"][name]["whole"]
        assert len({str(batch) for _, batch in whole}) == len(whole)
        for step, (done, rest) in rank["cases"][name]["rests"].items():
            assert rest == whole[done:], f"after {step}"


def test_without_a_seed_the_epoch_goes_on_and_the_next_ones_are_whole(ranks: list[dict[str, Any]]) -> None:
    told = [rank["cases"]["shuffled"] for rank in ranks]
    for step in told[0]["rests"]:
        epochs: dict[int, list[int]] = {}
        for rank in told:
            done, rest = rank["rests"][step]
            left = -done % STEPS
            assert indices(rest[:left]) == indices(rank["whole"][done : done + left]), f"after {step}"
            for epoch, batch in indices(rest[left:]):
                epochs.setdefault(epoch, []).extend(batch)
        assert len(epochs) == EPOCHS - 1 - (done - 1) // STEPS
        for samples in epochs.values():
            assert sorted(samples) == list(range(len(ranks) * STEPS * BATCH)), f"after {step}"


def test_every_sample_comes_once_an_epoch(ranks: list[dict[str, Any]]) -> None:
    for name in EXACT:
        if name != "limited":
            for epoch in range(EPOCHS):
                found = [indices(rank["cases"][name]["whole"]) for rank in ranks]
                samples = [index for rank in found for number, batch in rank if number == epoch for index in batch]
                assert sorted(samples) == list(range(len(ranks) * STEPS * BATCH)), name


def test_feedline_delivers_the_batches(ranks: list[dict[str, Any]]) -> None:
    assert all(set(rank["iterators"]) == {"TorchBatches"} for rank in ranks)
