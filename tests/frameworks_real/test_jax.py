"""JAX processes are ranks: each sample comes once over all of them, and their batches are parts of one array."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.bases import flat
from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import ROOT, outputs_of, run_ranks

pytestmark = pytest.mark.slow

need("jax")

SCRIPT = Path(__file__).with_name("jax_ranks.py")


TWO_DEVICES = "--xla_force_host_platform_device_count=2"


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", TWO_DEVICES)  # of each process
        yield run_ranks(SCRIPT, request.param, folder=tmp_path_factory.mktemp("ranks"))


def test_a_process_is_a_rank_once_jax_has_a_group(answers: list[Any]) -> None:
    assert [answer["alone"] for answer in answers] == [None] * len(answers)
    assert [answer["rank"] for answer in answers] == [[rank, len(answers)] for rank in range(len(answers))]
    assert [answer["jax"] for answer in answers] == [answer["rank"] for answer in answers]


@pytest.mark.parametrize("name", ["sampler", "stream", "threads", "forkserver"])
def test_each_sample_comes_once(answers: list[Any], name: str) -> None:
    assert sorted(flat([answer[name] for answer in answers])) == list(range(24))
    assert {len(answer[name]) for answer in answers} == {24 // len(answers)}


def test_the_batches_of_all_processes_are_one_array(answers: list[Any]) -> None:
    assert len({str(answer["sums"]) for answer in answers}) == 1
    assert sum(answers[0]["sums"]) == sum(range(24))
    assert answers[0]["shapes"] == [4 * len(answers)] * (6 // len(answers))
    assert {tuple(answer["devices"]) for answer in answers} == {(2, 2 * len(answers))}
    assert all(answer["shards are own"] for answer in answers), "each process puts its own rows on its devices"


def test_both_processes_of_the_example_end_with_the_same_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", TWO_DEVICES)
    first, second = outputs_of(ROOT / "examples" / "jax_training.py", 2, "--launched", folder=tmp_path)
    assert "process 0 of 2, 4 devices: 256 rows" in first
    assert "process 1 of 2, 4 devices: 256 rows" in second
    losses = [text.split("loss ")[1] for text in (first, second)]
    assert losses[0] == losses[1]
    assert float(losses[0]) < 0.1
