"""Loaders in Ray's tasks and actors, and in workers of Ray Train. One cluster for all tests, as it starts slowly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import ROOT

need("ray")

SCRIPT = Path(__file__).with_name("ray_ranks.py")
SIZE = 24
NAMES = [
    "sequential",
    "shuffled",
    "seeded",
    "threads",
    "processes",
    "own sampler",
    "torch's sampler",
    "batch sampler",
    "distributed",
    "sharded",
]
RANKS = [1, 2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # Ray Train takes half a minute to start its workers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ray")
    answers: dict[str, Any] = json.loads(output_of(SCRIPT, *map(str, RANKS), folder=folder).splitlines()[-1])
    return answers


def output_of(script: Path, *arguments: str, folder: Path) -> str:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "RAY_AUTH_MODE": "disabled",
            "RAY_DEDUP_LOGS": "0",
        },  # no token in the home directory
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_read_on_every_engine(answers: dict[str, Any], engine: str) -> None:
    assert answers["tasks"][engine] == {"epochs": [[*range(SIZE)], [*range(SIZE)]], "iterator": "TorchBatches"}


def test_actors_read_on_every_engine(answers: dict[str, Any], engine: str) -> None:
    expected = [[*range(first, first + 4)] for first in range(0, SIZE, 4)]
    assert answers["actors"][engine] == [*expected, None]


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_comes_once_over_all_ranks(answers: dict[str, Any], name: str, count: int) -> None:
    for epoch in range(2):
        batches = [batch for rank in answers[str(count)] for batch in rank[name]["epochs"][epoch]]
        assert sorted(index for batch in batches for index in batch) == list(range(SIZE))
        assert {len(batch) for batch in batches} == {4}


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_feedline_delivers_the_batches(answers: dict[str, Any], name: str, count: int) -> None:
    for rank in answers[str(count)]:
        assert rank[name]["loader"] == "feedline.loader.torch.DataLoader"
        assert rank[name]["iterators"] == {"TorchBatches": 2 * SIZE // 4 // count}


@pytest.mark.parametrize("count", RANKS)
def test_options_are_kept(answers: dict[str, Any], count: int) -> None:
    for rank in answers[str(count)]:
        assert rank["seeded"]["on_error"] == "skip"
        assert rank["threads"]["engine"] == "thread"


def test_epochs_differ(answers: dict[str, Any]) -> None:
    for name in ("shuffled", "seeded"):
        first, second = answers["2"][0][name]["epochs"]
        assert first != second


def test_example_sees_every_sample(tmp_path: Path) -> None:
    output = output_of(ROOT / "examples" / "ray_training.py", folder=tmp_path)
    for epoch in range(3):
        for rank in range(2):
            assert f"epoch {epoch}, rank {rank}: 128 samples" in output
