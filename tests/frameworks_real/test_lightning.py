"""Lightning and Fabric with real ranks: each sample comes once over all of them, and the loader keeps its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import ROOT, outputs_of, run_ranks

need("lightning")

SCRIPT = Path(__file__).with_name("lightning_ranks.py")
SIZE = 51
WAYS = ["", ", hook", ", Fabric"]
ONCE = [name + way for name in ["seeded", "subset", "distributed", "batches"] for way in WAYS]
ONCE += ["seeded, workers", "random", "distribute"]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank reported about all loaders."""
    return run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("ranks"))


def epochs(answers: list[dict[str, Any]], name: str) -> list[list[int]]:
    """Return the samples of all ranks in each epoch."""
    both = zip(*(rank[name]["epochs"] for rank in answers), strict=True)
    return [[index for samples in ranks for index in samples] for ranks in both]


@pytest.mark.parametrize("name", ONCE)
def test_every_sample_comes_once_over_all_ranks(answers: list[dict[str, Any]], name: str) -> None:
    first, second = epochs(answers, name)
    padding = -SIZE % len(answers)
    for samples in (first, second):
        assert set(samples) == set(range(SIZE))
        assert len(samples) == SIZE + padding
    assert first != second, "the order is the same in both epochs"


@pytest.mark.parametrize("way", WAYS, ids=["given", "hook", "Fabric"])
def test_batches_that_are_already_split_are_not_split_again(answers: list[dict[str, Any]], way: str) -> None:
    for samples in epochs(answers, "distributed batches" + way):
        assert sorted(samples) == list(range(48))


@pytest.mark.parametrize("way", WAYS, ids=["given", "hook", "Fabric"])
@pytest.mark.parametrize("name", ["options", "subclass"])
def test_options_survive_rebuilding(answers: list[dict[str, Any]], name: str, way: str) -> None:
    for samples in epochs(answers, name + way):
        assert set(samples) == set(range(SIZE)) - {5}  # sample 5 is broken and skipped
    for rank in answers:
        case = rank[name + way]
        assert case["loader"] == {"options": "DataLoader", "subclass": "Labelled"}[name]
        assert case["options"] == {"seed": 7, "on_error": "skip", "restarts": 3, "memory_budget": "1GB"}


def test_feedline_delivers_all_batches(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        assert {kind for case in rank.values() if isinstance(case, dict) for kind in case["iterators"]} == {
            "TorchBatches"
        }


def test_rejects_batches_that_lightning_cannot_split(answers: list[dict[str, Any]]) -> None:
    assert "batch_sampler=feedline.samplers.distribute(...)" in answers[0]["refused"]


def test_the_example_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    (output,) = outputs_of(ROOT / "examples" / "lightning_training.py", 1, folder=tmp_path)
    assert output.splitlines()[-1] == "96 samples, then the other 160: each one once"
