"""Ranks started by torchrun, in a torch process group: each sample comes once over all of them, in every epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.bases import flat
from tests.frameworks_real.ranks import ROOT

SCRIPT = Path(__file__).with_name("torchrun_ranks.py")


pytestmark = pytest.mark.slow  # tests/sources/test_process_group.py tests torch's ranks at a lower cost


@pytest.fixture(scope="module", params=[2, 3])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={request.param}"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    assert len(found) == request.param
    return found


@pytest.mark.parametrize("name", ["sampler", "torch's sampler", "processes", "early stream", "stream"])
def test_each_sample_comes_once(answers: list[Any], name: str) -> None:
    for epoch in range(2):
        assert sorted(flat([answer[name][epoch] for answer in answers])) == list(range(24))
    assert set(answers[0]["iterators"]) == {"TorchBatches"}
