"""Streaming datasets of Hugging Face: each sample once over workers and ranks, and nothing is split twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.bases import flat
from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import run_ranks

pytestmark = pytest.mark.slow

need("datasets")

SCRIPT = Path(__file__).with_name("hugging_face_ranks.py")
EVERY = list(range(36))


@pytest.fixture(scope="module", params=[2, 3])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("ranks"), forked=True)


def test_each_sample_comes_once(answers: list[Any]) -> None:
    for name in ("DataLoader", "Loader", "Loader by node", "resumed", "the epoch after", "resumed at the end"):
        for workers in (0, 2):
            assert sorted(flat([answer[f"{name} {workers}"] for answer in answers])) == EVERY, (name, workers)
    assert set(answers[0]["iterators"]) == {"TorchBatches"}


def test_datasets_that_split_themselves_are_not_split_again(answers: list[Any]) -> None:
    for answer in answers:
        assert "split themselves over workers. Drop shard=" in answer["twice"]
        assert "split_dataset_by_node(dataset, rank, world_size)" in answer["twice"]
        assert "Drop shard=" in answer["twice by node"]
        assert len(answers) == 1 or "cannot be combined with split_dataset_by_node" in answer["tail"]
