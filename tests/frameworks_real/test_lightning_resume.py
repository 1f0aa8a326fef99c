"""Lightning resumes from a checkpoint of any step with exactly the remaining samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import run_ranks
from tests.frameworks_real.resumption import check_rest, check_whole

need("lightning")

SCRIPT = Path(__file__).with_name("lightning_resume_ranks.py")
EPOCHS, STEPS, BATCH = 3, 2, 2
SEEDED = ["seeded, in order", "seeded", "seeded, workers", "own sampler", "torch's sampler", "limited"]
OTHERS = ["in order", "shuffled", "generator", "stream"]


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank reported about all loaders."""
    return run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*SEEDED, *OTHERS])
def test_resumed_runs_continue_exactly(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        check_rest(rank["cases"][name], draws=name in SEEDED)


@pytest.mark.parametrize("name", [*SEEDED, *OTHERS])
def test_every_sample_comes_once_per_epoch(ranks: list[dict[str, Any]], name: str) -> None:
    if name != "limited":
        check_whole([rank["cases"][name] for rank in ranks], epochs=EPOCHS, samples=len(ranks) * STEPS * BATCH)


def test_feedline_delivers_the_batches(ranks: list[dict[str, Any]]) -> None:
    assert all(set(rank["iterators"]) == {"TorchBatches"} for rank in ranks)
