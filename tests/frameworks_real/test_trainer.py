"""The Trainer of transformers with feedline's loader: through an override, and through `feedline.install()`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import ROOT, outputs_of, run_ranks

need("transformers")
need("accelerate")

SCRIPT = Path(__file__).with_name("trainer_ranks.py")
SIZE = 24
OURS = ["override", "installed", "installed, workers"]


@pytest.fixture(scope="module", params=[1, 2])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("trainer"))


def epochs(answers: list[dict[str, Any]], name: str) -> list[list[int]]:
    """Return the samples of all ranks in each of the two epochs."""
    half = len(answers[0][name]["seen"]) // 2
    parts = [slice(0, half), slice(half, None)]
    return [[index for rank in answers for batch in rank[name]["seen"][part] for index in batch] for part in parts]


@pytest.mark.parametrize("name", [*OURS, "uninstalled"])
def test_every_sample_comes_once_over_all_ranks(answers: list[dict[str, Any]], name: str) -> None:
    first, second = epochs(answers, name)
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first != second


@pytest.mark.parametrize("name", OURS)
def test_feedline_delivers_the_batches(answers: list[dict[str, Any]], name: str) -> None:
    for rank in answers:
        assert rank[name]["iterators"] == {"TorchBatches": 2 * SIZE // 4 // len(answers)}


def test_evaluation_sees_every_sample(answers: list[dict[str, Any]]) -> None:
    for name in ("installed", "installed, workers"):
        assert sorted(index for rank in answers for index in rank[name]["evaluated"]) == list(range(SIZE))
        assert {kind for rank in answers for kind in rank[name]["eval_iterators"]} == {"TorchBatches"}


def test_options_of_an_override_are_kept(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        assert rank["override"]["options"] == {"on_error": "skip", "engine": "thread", "seed": 42}


def test_after_uninstall_torchs_loader_delivers(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        assert set(rank["uninstalled"]["iterators"]) == {"_SingleProcessDataLoaderIter"}


@pytest.mark.parametrize("name", ["installed", "installed, workers"])
def test_the_order_is_that_of_the_trainer(answers: list[dict[str, Any]], name: str) -> None:
    assert [rank[name]["seen"] for rank in answers] == [rank["uninstalled"]["seen"] for rank in answers]


@pytest.mark.slow  # transformers alone takes seven seconds to import
def test_example_sees_every_sample(tmp_path: Path) -> None:
    outputs = outputs_of(ROOT / "examples" / "trainer_training.py", 2, folder=tmp_path)
    for rank, output in enumerate(outputs):
        assert output.splitlines()[-1] == f"rank {rank}: 256 samples"  # two epochs of one half
