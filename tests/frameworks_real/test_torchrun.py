"""Ranks started by torchrun, in a torch process group: each sample comes once over all of them, in every epoch."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks_real.bases import flat
from tests.frameworks_real.ranks import ROOT

SCRIPT = Path(__file__).with_name("torchrun_ranks.py")
EXAMPLE = ROOT / "examples" / "torchrun_training.py"


pytestmark = pytest.mark.slow  # tests/sources/test_process_group.py tests torch's ranks at a lower cost


def launch(ranks: int, script: Path, *arguments: str) -> str:
    """Run a script with torchrun; return what the ranks printed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", params=[2, 3])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    launch(request.param, SCRIPT, str(folder))
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    assert len(found) == request.param
    return found


@pytest.mark.parametrize("name", ["sampler", "torch's sampler", "processes", "early stream", "stream"])
def test_each_sample_comes_once(answers: list[Any], name: str) -> None:
    for epoch in range(2):
        assert sorted(flat([answer[name][epoch] for answer in answers])) == list(range(24))
    assert set(answers[0]["iterators"]) == {"TorchBatches"}


@pytest.mark.timeout(420)  # five interpreters import a large part of torch
def test_the_example_stops_with_two_ranks_and_resumes_with_three(tmp_path: Path) -> None:
    def trained(ranks: int, *options: str) -> list[list[int]]:
        output = launch(ranks, EXAMPLE, str(tmp_path), *options)
        return [ast.literal_eval(line) for line in re.findall(r"rank \d of \d: (\[.*?\])", output)]

    before, after = trained(2, "--stop-after", "5"), trained(3)
    assert [len(seen) for seen in before] == [20, 20]
    counts = Counter(number for seen in before + after for number in seen)
    assert counts.keys() == {shard * 100 + number for shard in range(6) for number in range(20 + 7 * shard)}
    repeated = {number for number, count in counts.items() if count > 1}
    assert len(repeated) <= 4 * 3  # ranks without batches repeat their first ones until the end of the epoch
