"""The Ray examples, each run as its own program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.ray
@pytest.mark.timeout(300)  # Ray takes half a minute to start on a busy machine
def test_the_example_runs(tmp_path: Path) -> None:
    done = run_example("ray_workers.py", tmp_path)
    assert done.returncode == 0, done.stderr
    for epoch in range(3):
        assert f"epoch {epoch}: 256 samples" in done.stdout
    assert "bit by bit: True" in done.stdout


@pytest.mark.ray
@pytest.mark.timeout(600)  # three nodes start one after the other
def test_a_cluster_of_three_nodes_survives_the_death_of_one(tmp_path: Path) -> None:
    done = run_example("clusters/ray_three_nodes.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 nodes" in done.stdout
    assert "killed node" in done.stdout
    assert "epoch 1 is complete, bit by bit: 400 samples" in done.stdout
    (restarted,) = re.findall(r"workers restarted: (\d+)", done.stdout)
    assert int(restarted) >= 1


def run_example(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example to its end."""
    pytest.importorskip("ray")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    without_token = {"RAY_AUTH_MODE": "disabled"}  # Ray would write a token to the home directory
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **without_token},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
